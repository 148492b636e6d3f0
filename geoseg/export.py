"""`python -m geoseg.export`: a model for other software (ONNX, torch.export), a STAC item and a model card."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from geoseg.cli import Invocation, progress, run_command
from geoseg.errors import ModelFileError, problem
from geoseg.learn.files import make_folder, replacing

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from geoseg.learn.exchange import InferenceGraph
    from geoseg.learn.modelfile import ModelSpec

FORMATS = ("onnx", "torch", "stac", "card")
_LARGEST_DIFFERENCE = 1e-4  # relative, of logits computed in float32 by another library


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("export", argv, _export, _add_options, needs_config=lambda options: not options.model)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, metavar="FILE", help="the model file, instead of the config's")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="by default `export` beside the model file")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, metavar="FORMAT", help=f"some of {', '.join(FORMATS)}")


def _export(call: Invocation) -> None:
    from geoseg.learn.exchange import InferenceGraph, require_onnx
    from geoseg.learn.modelfile import load_model_file

    formats = _formats(call)
    if "onnx" in formats:
        require_onnx()
    path = Path(call.options.model or call.config.classification.state_dict_path).absolute()
    network, spec = load_model_file(path)
    folder = make_folder((call.options.output or path.parent / "export").absolute())
    graph = InferenceGraph(network, spec.normalisation)
    files = [folder / name for kind, name in (("onnx", "model.onnx"), ("torch", "model.pt2")) if kind in formats]
    if files:
        with progress(len(files) + 1, "exporting", "steps") as bar:
            from geoseg.learn.exchange import export_program

            program = export_program(graph, spec)
            bar.update()
            for file in files:
                _write_graph(call, file, graph, spec, program)
                bar.update()
    _describe(call, [*files, path], folder, graph, spec)


def _formats(call: Invocation) -> tuple[str, ...]:
    """Return what to write: what was asked for, or everything that this installation can write."""
    if call.options.formats:
        return tuple(call.options.formats)
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        call.log.warn(f"no package {', '.join(missing)}: ONNX is left out; pip install 'geoseg[export]'")
    return tuple(kind for kind in FORMATS if kind != "onnx" or not missing)


def _write_graph(
    call: Invocation, file: Path, graph: InferenceGraph, spec: ModelSpec, program: ExportedProgram
) -> None:
    """Write one form of the graph and compare what it computes."""
    from geoseg.learn import exchange

    if file.suffix == ".onnx":
        exchange.save_onnx(file, program, spec)
        difference = exchange.onnx_difference(file, graph, spec)
    else:
        exchange.save_program(file, program)
        difference = exchange.program_difference(file, graph, spec)
    if difference is None:
        call.log.warn(f"{file.name}: not compared, because onnxruntime is not installed")
    elif not difference <= _LARGEST_DIFFERENCE:
        file.unlink()
        found = f"logits that differ by {difference:.1e} of the largest"
        raise ModelFileError(problem(file, found, f"at most {_LARGEST_DIFFERENCE:.0e}", "please report this model"))
    checked = "" if difference is None else f"  (logits within {difference:.1e} of torch's)"
    call.log.info(f"{file.suffix[1:]:<10} {file}{checked}")


def _describe(call: Invocation, files: Sequence[Path], folder: Path, graph: InferenceGraph, spec: ModelSpec) -> None:
    """Write the card and the item, as far as they are wanted."""
    from geoseg.learn.modelfile import model_hash
    from geoseg.learn.stacitem import ItemFile, model_item
    from geoseg.report.modelcard import model_card

    wanted = call.options.formats or FORMATS
    hashes = {file: model_hash(file) for file in files}
    if "card" in wanted:
        card = folder / "model_card.md"
        facts = {file.name: f"SHA-256 {value}" for file, value in hashes.items()}
        with replacing(card) as out:
            out.write(model_card(spec, facts, cast("int | None", graph.network.receptive_radius)).encode())
        hashes[card] = model_hash(card)
        call.log.info(f"card       {card}")
    if "stac" in wanted:
        item = folder / "stac_item.json"
        parameters = sum(weight.numel() for weight in graph.network.parameters())
        written = datetime.fromtimestamp(files[-1].stat().st_mtime, UTC)
        entries = [ItemFile(file, value) for file, value in hashes.items()]
        with replacing(item) as out:
            content = model_item(spec, entries, parameters, written, item)
            out.write((json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
        call.log.info(f"STAC item  {item}")


if __name__ == "__main__":
    raise SystemExit(main())
