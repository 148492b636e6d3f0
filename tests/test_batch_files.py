"""The batch examples: they parse, and their commands are ones that geoseg understands."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from geoseg.classify import _add_options
from geoseg.cli import sort_items
from geoseg.config import load_config
from geoseg.execution import share_of_work

FOLDER = Path(__file__).resolve().parents[1] / "config/batch"


def options_of(words: list[str]) -> argparse.Namespace:
    """Return what `classify` makes of the words after its name."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("items", nargs="*")
    _add_options(parser)
    return parser.parse_intermixed_args(words)


def test_the_config_loads():
    config = load_config(FOLDER / "config.yaml")
    assert config.classification.state_dict_path == Path("/data/runs/unetsmall/best.safetensors")


def test_compose_runs_the_steps_one_after_the_other():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert list(services) == ["sample", "train", "classify"]
    for before, after in (("sample", "train"), ("train", "classify")):
        assert services[after]["depends_on"] == {before: {"condition": "service_completed_successfully"}}
    for name, service in services.items():
        assert service["command"][:2] == [name, "/data/config.yaml"]
        assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    assert options_of(services["classify"]["command"][1:]).resume


def test_kubernetes_shares_are_all_of_the_work():
    job = yaml.safe_load((FOLDER / "kubernetes_job.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (line,) = container["args"]
    assert job["completionMode"] == "Indexed"
    shares = set()
    for index in range(job["completions"]):
        spoken = f"JOB_COMPLETION_INDEX={index}; set -- {line.removeprefix('exec ')}; printf '%s\\n' \"$@\""
        words = subprocess.run(["sh", "-c", spoken], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        assert words[:2] == ["geoseg", "classify"]
        options = options_of(words[2:])
        assert (options.resume, options.max_memory) == (True, "3GiB")
        shares.add(share_of_work(options.shard))
    assert shares == {(number + 1, job["completions"]) for number in range(job["completions"])}


def test_aws_batch_says_array_and_command():
    said = json.loads((FOLDER / "aws_batch.json").read_text())
    container = said["jobDefinition"]["containerProperties"]
    assert container["command"][0] == "classify"
    assert options_of(container["command"][1:]).resume
    assert said["submitJob"]["jobDefinition"] == said["jobDefinition"]["jobDefinitionName"]
    size = said["submitJob"]["arrayProperties"]["size"]
    variables = {"AWS_BATCH_JOB_ARRAY_INDEX": "9", "AWS_BATCH_JOB_ARRAY_SIZE": str(size)}
    assert share_of_work(None, variables) == (10, 10)


def test_slurm_runs_classify():
    path = FOLDER / "slurm_apptainer.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = path.read_text().replace("\\\n", " ").splitlines()
    assert "#SBATCH --array=0-9" in lines
    words = lines[-1].split()
    place = words.index("classify")
    assert words[:3] == ["exec", "apptainer", "run"]
    assert (options_of(words[place + 1 :]).resume, sort_items(words[place + 1 : place + 2])[0]) == (
        True,
        Path("/data/config.yaml"),
    )


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_script_is_clean():
    subprocess.run(["shellcheck", str(FOLDER / "slurm_apptainer.sh")], check=True)
