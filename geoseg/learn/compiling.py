"""What goes wrong in torch.compile, as one line: it needs a C++ compiler, and takes not every network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from geoseg.errors import ConfigError, problem

_COMPILERS = ("torch._dynamo", "torch._inductor")


@contextmanager
def compilation_explained() -> Iterator[None]:
    """Turn an error of the compiler into one about `training.compile`."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_COMPILERS):
            raise
        line = (str(error).strip().splitlines() or [""])[0][:200]
        found = f"true, and torch cannot compile the network here ({type(error).__name__}: {line})"
        remedy = "set it to false, or install what the message asks for"
        raise ConfigError(problem("training.compile", found, "a network that torch compiles", remedy)) from error
