"""`python -m geoseg.classify`: a model file and rasters to class maps.

An image that cannot be classified does not stop the others: they are done, and the command ends with exit code 4 and a
reason for each that failed (2 if all did).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from geoseg.cli import Invocation, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command("classify", argv, _classify, _add_options, needs_config=_needs_config)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        type=Path,
        metavar="FILE",
        help="model file, instead of classification.state_dict_path; given several times, all are averaged",
    )
    parser.add_argument("--images", nargs="+", metavar="IMAGE", help="images, folders, patterns or lists to classify")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the maps")
    parser.add_argument("--bands", nargs="+", type=int, metavar="N", help="bands to use, from 1, in the model's order")
    parser.add_argument("--resume", action="store_true", help="go on with what an interrupted run left of its maps")
    parser.add_argument(
        "--resample", action="store_true", help="read images in the pixel size of the training, and map them so"
    )
    parser.add_argument(
        "--max-memory", metavar="SIZE", help="choose windows that keep the process below this, such as 2GiB"
    )
    parser.add_argument(
        "--self-test", action="store_true", help="check, on made-up scenes, that windows leave no seams"
    )
    parser.add_argument(
        "--shard", metavar="i/n", help="classify the i-th of n shares; batch arrays are known by themselves"
    )
    parser.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="classify images on this Dask cluster")
    parser.add_argument("--dask-local", type=int, metavar="N", help="on a Dask cluster of N processes started here")


def _needs_config(options: argparse.Namespace) -> bool:
    return not options.self_test and (options.model is None or options.images is None)


def _classify(call: Invocation) -> None:
    # Only now: torch takes seconds to import, which --help need not wait for.
    if call.options.self_test:
        from geoseg.classify.testing import run_self_test

        run_self_test(call.log)
        return
    from geoseg.classify.work import classify_images

    classify_images(call)
