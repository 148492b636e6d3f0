"""What the README tells people to type works as it stands there, and so does the tutorial's config."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synthetic
from geoseg import plan
from geoseg.config import load_config

ROOT = Path(__file__).resolve().parents[1]
# Run by people and by .ci/run (make), or in need of a container engine.
NOT_RUN_HERE = ("make ", "docker ")
# The README's example trains for as long as a real case needs; here one short epoch must do.
SHORTER = {"geoseg.train": ["training.num_epochs=1", "training.num_trn_samples=2", "training.num_val_samples=1"]}


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(path: Path) -> list[str]:
    """The shell commands of a document, without what is not run here."""
    lines = [line.strip() for block in blocks(path, "bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", *NOT_RUN_HERE))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README says the reader has: rasters, polygons, prep.csv and config.yaml."""
    folder = tmp_path_factory.mktemp("readme")
    synthetic.write_project(folder, side=256)
    (folder / "prep.csv").write_text(blocks(ROOT / "README.md", "csv")[0], encoding="utf-8")
    (folder / "config.yaml").write_text(blocks(ROOT / "README.md", "yaml")[0], encoding="utf-8")
    return folder


def test_every_command_of_the_readme_works(folder: Path) -> None:
    lines = commands(ROOT / "README.md")
    assert [
        name for name in ("sample", "train", "classify", "evaluate") if f"geoseg.{name} " not in "\n".join(lines)
    ] == []
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for line in lines:
        command = line.split("#")[0] if " # " in line else line
        for module, overrides in SHORTER.items():
            if f"-m {module} " in command:
                command = " ".join([command.rstrip(), *overrides])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for name in (
        "data/samples/store.json",
        "runs/unetsmall/best.safetensors",
        "maps/test_classes.tif",
        "maps_with_confidence/test_confidence.tif",
        "elsewhere/test_classes.tif",
        "maps/evaluation",
    ):
        assert (folder / name).exists(), name


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md", "docs/inputs.md", "docs/training.md"])
def test_every_config_in_the_docs_loads(document: str, tmp_path: Path) -> None:
    found = blocks(ROOT / document, "yaml")
    assert found
    for text in found:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        assert load_config(tmp_path / "config.yaml").global_.num_classes >= 2


@pytest.mark.parametrize(
    "document", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], key=str), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [link for link in targets if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


def test_the_batches_of_the_readme_are_those_that_plan_works_out(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {m[1]: int(m[2]) for m in re.finditer(r"^\| `(\w+)`.*\| (\d+) \|$", text, re.MULTILINE)}
    config, found = tmp_path / "config.yaml", tmp_path / "plan.json"
    config.write_text("global: {number_of_bands: 4, num_classes: 5, samples_size: 256}\n")

    assert plan.main([str(config), "--memory", "11GiB", "--json", str(found)]) == 0

    rows = json.loads(found.read_text())["models"]
    assert shown == {row["model"]: row["largest"][0] for row in rows}
