"""Holds the import rule and the sizes of modules and functions.

The rules are read from the syntax tree, so imports inside functions count too, and nothing needs to be importable.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"__main__", "sample", "train", "classify", "evaluate", "plan", "check", "export"}
BELOW_COMMANDS = {"report", "predict", "assess", "learn", "data", "models", "memory", "geo", "errors"}

# What each part of the package may import of the others. Arrows point down only.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "memory": set(),
    "geo": {"errors"},
    "data": {"geo", "errors"},
    "models": {"memory", "geo", "errors"},
    "learn": {"data", "models", "memory", "geo", "errors"},
    "predict": {"learn", "data", "models", "memory", "geo", "errors"},
    "assess": {"learn", "data", "models", "geo", "errors"},
    "report": {"predict", "assess", "learn", "data", "models", "geo", "errors"},
    "config": {"errors", "models.options"},
    "execution": set(),
    "console": set(),
    "cli": {"config", "console", "errors"},
    "settings": {"config", "data", "execution", "geo", "errors"},
}
ALLOWED["trainjob"] = BELOW_COMMANDS | {"config", "console", "execution", "settings"}
ALLOWED |= {command: BELOW_COMMANDS | {"cli", "config", "console", "execution", "settings"} for command in COMMANDS}
ALLOWED["train"].add("trainjob")
ALLOWED["plan"].add("trainjob")

# Libraries that one place alone may import.
ONLY_IN = {
    "pyogrio": ("geo.vector",),
    "albumentations": ("data.augment",),
    "yaml": ("config",),
    "tqdm": ("console",),
}
WITHOUT_TORCH = {"errors", "config", "console", "cli", "execution", "geo", "models.options", "__main__"}
MAX_MODULE, MAX_FUNCTION, MAX_PARAMETERS = 400, 50, 7


def modules(root: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its dotted name below the package; the package itself is ''."""
    package = root / "geoseg"
    trees = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def imports(name: str, tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Yield what a module imports, dotted: 'geoseg.geo.grid', 'torch.nn'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner.removeprefix("geoseg.") in known else str(node.module)


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _is_wrong_inside(part: str, target: str) -> bool:
    return not any(within(target, other) for other in ALLOWED.get(part, set()) | {part})


def _is_wrong_library(name: str, library: str) -> bool:
    if library in ("torch", "torchmetrics", "lightning_fabric") and any(within(name, part) for part in WITHOUT_TORCH):
        return True
    if within(name, "memory") and library not in {"geoseg", "torch", *sys.stdlib_module_names}:
        return True
    return library in ONLY_IN and not any(within(name, place) for place in ONLY_IN[library])


def wrong_imports(root: Path) -> list[str]:
    """Return the imports that break the rule, as 'importer -> imported'."""
    trees = modules(root)
    wrong = []
    for name, tree in trees.items():
        part = name.split(".")[0]
        for target in imports(name, tree, trees):
            library, _, inner = target.partition(".")
            inside = library == "geoseg" and inner in trees and bool(inner)
            if _is_wrong_inside(part, inner) if inside else _is_wrong_library(name, library):
                wrong.append(f"{name} -> {inner if inside else library}")
    return wrong


def raster_openers(root: Path) -> list[str]:
    """Return the modules outside geo.raster that open or copy rasters; other parts of rasterio are free to all."""
    openers = {"rasterio.open", "rasterio.io", "rasterio.shutil", "rasterio.copy", "rasterio.vrt"}
    trees = modules(root)
    found = []
    for name, tree in trees.items():
        used = {part for target in _names_used(tree) for part in (target, target.rpartition(".")[0])}
        if used & openers and not within(name, "geo.raster"):
            found.append(name)
    return found


def _names_used(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def import_cycle(root: Path) -> list[str]:
    """Return modules that import one another in a circle; empty if there are none. Lazy imports count."""
    trees = modules(root)
    graph = {
        name: {t.removeprefix("geoseg.") for t in imports(name, tree, trees) if t.startswith("geoseg.")} & set(trees)
        for name, tree in trees.items()
    }
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph[name] - {name}):
            if found := visit(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := visit(name, []))), [])


def oversized(root: Path) -> list[str]:
    """Return modules, functions and parameter lists beyond the limits."""
    found = []
    for folder in ("geoseg", "tools"):
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            where = path.relative_to(root)
            if len(source.splitlines()) > MAX_MODULE:
                found.append(f"{where}: {len(source.splitlines())} lines")
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += [f"{where}: {node.name} has {text}" for text in _too_large(node)]
    return found


def _too_large(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    if lines > MAX_FUNCTION:
        yield f"{lines} lines"
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len([name for name in names if name not in ("self", "cls")])
    if count > MAX_PARAMETERS:
        yield f"{count} parameters"


def test_imports_point_down() -> None:
    assert wrong_imports(ROOT) == []


def test_one_place_opens_rasters() -> None:
    assert raster_openers(ROOT) == []


def test_every_module_belongs_to_a_known_part() -> None:
    parts = {name.split(".")[0] for name in modules(ROOT)} - {""}
    assert parts <= set(ALLOWED)


def test_no_import_cycles() -> None:
    assert import_cycle(ROOT) == []


def test_modules_functions_and_parameter_lists_stay_small() -> None:
    assert oversized(ROOT) == []


def test_config_and_cli_load_without_torch_and_heavy_libraries() -> None:
    code = "import sys, geoseg.cli; print([m for m in ('torch', 'numpy', 'rasterio', 'geopandas') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"


def make_package(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = root / "geoseg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("geo/grid.py", "from geoseg.data import store", "geo.grid -> data.store"),
        ("data/store.py", "def f():\n    import geoseg.models", "data.store -> models"),
        ("models/unet.py", "from geoseg.data.store import x", "models.unet -> data.store"),
        ("sample.py", "from geoseg import train", "sample -> train"),
        ("learn/engine.py", "from geoseg.config import load_config", "learn.engine -> config"),
        ("config.py", "from geoseg.models import MODELS", "config -> models"),
        ("memory/recompute.py", "import numpy", "memory.recompute -> numpy"),
        ("memory/recompute.py", "from geoseg.errors import problem", "memory.recompute -> errors"),
        ("geo/vector.py", "import torch", "geo.vector -> torch"),
        ("data/store.py", "from pyogrio import read_dataframe", "data.store -> pyogrio"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, name: str, source: str, wrong: str) -> None:
    others = ("data/store.py", "models/__init__.py", "config.py", "train.py", "errors.py", "__init__.py")
    make_package(tmp_path, dict.fromkeys(others, "") | {name: source})
    assert wrong_imports(tmp_path) == [wrong]


def test_allowed_imports_pass(tmp_path: Path) -> None:
    files = {
        "models/options.py": "import pydantic",
        "config.py": "from geoseg.models.options import x\nfrom geoseg.errors import y\nimport geoseg",
        "memory/recompute.py": "import torch, math",
        "models/unet.py": "from geoseg.memory.recompute import x",
        "errors.py": "",
        "__init__.py": "",
        "sample.py": "from geoseg import cli",
        "cli.py": "from geoseg.config import x",
    }
    assert wrong_imports(make_package(tmp_path, files)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import rasterio\nrasterio.open('a.tif')",
        "from rasterio import open as o",
        "import rasterio.shutil",
        "from rasterio import shutil",
        "from rasterio.io import MemoryFile",
    ],
)
def test_opening_a_raster_elsewhere_is_found(tmp_path: Path, source: str) -> None:
    files = {"data/store.py": source, "geo/raster.py": source, "geo/vector.py": "import rasterio.features"}
    assert raster_openers(make_package(tmp_path, files)) == ["data.store"]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    files = {
        "geo/a.py": "from geoseg.geo import b",
        "geo/b.py": "def f():\n    import geoseg.geo.a",
        "geo/__init__.py": "",
    }
    assert import_cycle(make_package(tmp_path, files)) == ["geo.a", "geo.b", "geo.a"]


def test_large_things_are_found(tmp_path: Path) -> None:
    body = "\n".join(["    x = 1"] * 50)
    many = "def many(self, a, b, c, d, e, f, *, g, h):\n    pass\n"
    source = f"def long():\n{body}\n\n{many}" + "\n" * 400
    found = oversized(make_package(tmp_path, {"a.py": source}))
    assert [text.split(": ")[1] for text in found] == ["454 lines", "long has 51 lines", "many has 8 parameters"]


def test_a_docstring_does_not_count_as_length(tmp_path: Path) -> None:
    body = "\n".join(["    x = 1"] * 49)
    source = f'def f():\n    """One.\n\n    Two.\n    """\n{body}\n'
    assert oversized(make_package(tmp_path, {"a.py": source})) == []
