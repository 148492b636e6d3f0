"""A compiled network takes the same step; what the compiler cannot do is one line."""

from functools import partial

import pytest
import torch
import toys

from geoseg.errors import ConfigError
from geoseg.learn import engine
from geoseg.learn.compiling import compilation_explained


def test_the_weights_are_the_same_and_keep_their_names(tmp_path, monkeypatch):
    """With the backend that compiles nothing: the code that it would make is torch's affair, and takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    jobs = [toys.make_job(tmp_path, name, num_epochs=1, compile=name == "compiled") for name in ("plain", "compiled")]
    for job in jobs:
        engine.train(job)
    states = [torch.load(job.folder / "last.ckpt", weights_only=True)["model"] for job in jobs]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], atol=1e-6), name


def test_the_compilers_error_is_one_line_about_the_key():
    error = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    with pytest.raises(ConfigError, match=r"training\.compile: found .*InductorError: no C\+\+ compiler\)") as caught:
        raise_in_compilation(error("no C++ compiler\nand more"))
    assert len(caught.value.problems) == 1
    with pytest.raises(ZeroDivisionError):
        raise_in_compilation(ZeroDivisionError())


def raise_in_compilation(error):
    with compilation_explained():
        raise error
