"""The checkpoint and the rules of the run folder."""

import re

import pytest
import torch
import toys

from geoseg.errors import ConfigError, ModelFileError
from geoseg.learn import engine
from geoseg.learn.checkpoint import Checkpoint, find_checkpoint, start_folder


@pytest.fixture
def run(tmp_path):
    job = toys.make_job(tmp_path, num_epochs=1)
    engine.train(job)
    return job.folder


def test_the_safe_loader_opens_it(run):
    content = torch.load(run / "last.ckpt", weights_only=True)
    assert content["progress"]["epoch"] == 1
    saved = Checkpoint.load(run / "last.ckpt")
    assert saved.model_spec() == toys.make_spec()
    assert saved.settings == {"seed": 3, "optimizer": "adam", "learning_rate": 0.01, "batch_size": 0, "steps": 2}
    assert saved.progress["best"]["epoch"] == 1


def test_a_failed_write_keeps_the_previous_one(run):
    saved = Checkpoint.load(run / "last.ckpt")
    before = (run / "last.ckpt").read_bytes()
    broken = Checkpoint(**{**vars(saved), "progress": {"not picklable": (value for value in ())}})
    with pytest.raises(TypeError):
        broken.save(run / "last.ckpt")
    assert (run / "last.ckpt").read_bytes() == before
    assert not list(run.glob("*.tmp"))


def test_leftovers_of_a_killed_write_do_no_harm(run):
    (run / "last.ckpt.tmp").write_bytes(b"half of a checkp")
    saved = find_checkpoint(run, resume=True, overwrite=False)
    saved.save(run / "last.ckpt")
    assert not (run / "last.ckpt.tmp").exists()


def test_an_existing_run_is_refused_by_one_line_that_says_what_to_do(run):
    with pytest.raises(ConfigError, match=r"found a run .*--resume .*--overwrite .*run_name") as caught:
        find_checkpoint(run, resume=False, overwrite=False)
    assert len(caught.value.problems) == 1
    assert str(run) in str(caught.value)


def test_resume_overwrite_and_both(run):
    assert find_checkpoint(run, resume=True, overwrite=False).epoch == 1
    assert find_checkpoint(run, resume=False, overwrite=True) is None
    with pytest.raises(ConfigError, match="resume and overwrite"):
        find_checkpoint(run, resume=True, overwrite=True)


def test_a_folder_without_a_run_is_free(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (True, False):
        assert find_checkpoint(tmp_path, resume, overwrite=False) is None
        assert find_checkpoint(tmp_path / "absent", resume, overwrite=False) is None


def test_a_run_stopped_before_its_first_checkpoint_starts_from_the_beginning(run):
    (run / "last.ckpt").unlink()
    assert find_checkpoint(run, resume=True, overwrite=False) is None


def test_starting_anew_keeps_foreign_files(run):
    (run / "notes.txt").write_text("mine")
    start_folder(run)
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint at all", b"PK\x03\x04 neither"], ids=["empty", "text", "broken zip"]
)
def test_damaged_checkpoints_are_named(tmp_path, content):
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(ModelFileError, match=re.escape(str(tmp_path / "last.ckpt"))):
        find_checkpoint(tmp_path, resume=True, overwrite=False)


def test_a_file_of_another_program_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    with pytest.raises(ModelFileError, match="expected a checkpoint of geoseg"):
        find_checkpoint(tmp_path, resume=True, overwrite=False)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Attack:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"format": Attack()}, tmp_path / "last.ckpt")
    with pytest.raises(ModelFileError):
        find_checkpoint(tmp_path, resume=True, overwrite=False)
    assert not (tmp_path / "ran").exists()
