"""What the commands share: grammar, log and progress, errors in one line each, exit codes.

A command is a thin module with `main(argv) -> int` that calls `run_command`. Nothing here imports torch, so that help
and mistakes in the config are answered at once.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import geoseg
from geoseg.config import Config, load_config
from geoseg.console import Log, Progress, progress, using_log, warn
from geoseg.errors import CapacityError, ConfigError, GeosegError, Interrupted, problem

__all__ = ["COMMANDS", "Invocation", "Log", "Progress", "progress", "run_command", "sort_items", "warn"]

#: The commands and what each does, in the order of their use.
COMMANDS = {
    "check": "say everything that would go wrong, before anything is written",
    "plan": "work out peak memory and the largest batch per model and GPU, on a CPU",
    "sample": "cut rasters and polygons into a store of samples",
    "train": "train a model on the samples",
    "classify": "make class maps of whole rasters with a model",
    "evaluate": "compare class maps with reference polygons",
    "export": "write a model for other software",
}

_GRAMMAR = "[CONFIG.yaml] [section.key=value ...]"
_OVERRIDE = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*\s*=")
_ENVIRONMENT = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@dataclass(frozen=True)
class Invocation:
    """What a command was called with.

    Attributes:
        config: The settings; the defaults if there is no config file.
        config_path: The config file, or None.
        options: The command's own `--options`.
        log: Takes lines and warnings for the user.
    """

    config: Config
    config_path: Path | None
    options: argparse.Namespace
    log: Log


Action = Callable[[Invocation], None]
AddOptions = Callable[[argparse.ArgumentParser], None]


def run_command(
    name: str,
    argv: Sequence[str] | None,
    action: Action,
    add_options: AddOptions | None = None,
    needs_config: bool | Callable[[argparse.Namespace], bool] = True,
) -> int:
    """Run a command and return its exit code; errors are printed, never raised.

    Args:
        name: The command, a key of COMMANDS.
        argv: The words after the command; None takes them from `sys.argv`.
        action: Does the work.
        add_options: Adds the command's own options to the parser.
        needs_config: Whether it is an error if no config is named and none is found. A function of the options may
            decide: False from it means that the options say everything, and no config is looked for.
    """
    log = Log()
    started = time.monotonic()
    try:
        with using_log(log), _library_warnings(log), _termination_as_interrupt():
            action(_invocation(name, argv, add_options, needs_config, log))
            log.finish(time.monotonic() - started)
    except SystemExit as leave:  # --help, --version
        return leave.code if isinstance(leave.code, int) else 0
    except BrokenPipeError:
        # The reader of our output has gone; without this Python complains once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except BaseException as error:
        return _report(error)
    return 0


def _report(error: BaseException) -> int:
    """Print an error on stderr as the user should see it; return the exit code."""
    known = _as_geoseg_error(error)
    if known is None:
        traceback.print_exception(error)
        return 1
    for line in known.problems:
        print(line, file=sys.stderr)
    return known.exit_code


def _as_geoseg_error(error: BaseException) -> GeosegError | None:
    if isinstance(error, GeosegError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            "interrupted: nothing half-written has a final name; run it again to go on (train, classify: with --resume)"
        )
    # torch is not imported here, so its error is known by name.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        detail = (str(error).splitlines() or [""])[0][:200] or "no more memory"
        remedy = "lower batch_size or the window, or choose a model that needs less, such as reversible_unet"
        return CapacityError(problem("memory", detail, "room for the work", remedy))
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        remedy = "free some space" if error.errno in _ENVIRONMENT[:2] else "correct the permissions or the path"
        return GeosegError(problem(error.filename or "disk", error.strerror or str(error), "a writable place", remedy))
    return None


def _invocation(
    name: str,
    argv: Sequence[str] | None,
    add_options: AddOptions | None,
    needs_config: bool | Callable[[argparse.Namespace], bool],
    log: Log,
) -> Invocation:
    parser = _Parser(
        prog=f"python -m geoseg.{name}",
        usage=f"python -m geoseg.{name} {_GRAMMAR} [--options]",
        description=f"geoseg {name}: {COMMANDS.get(name, '')}",
        epilog="Without CONFIG.yaml: $GEOSEG_CONFIG, else ./config.yaml. All keys: docs/config.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "items", nargs="*", metavar="CONFIG.yaml | section.key=value", help="config file; changes to it"
    )
    parser.add_argument("--version", action="version", version=f"geoseg {geoseg.__version__}")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_intermixed_args(argv)
    path, overrides = sort_items(options.items)
    if path is None:
        look = needs_config if isinstance(needs_config, bool) else needs_config(options)
        path = _default_config(required=look) if look or isinstance(needs_config, bool) else None
    return Invocation(load_config(path, overrides), path, options, log)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}; see {self.prog} --help")


def sort_items(items: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the config file among the items of a command line, and the overrides.

    Raises:
        ConfigError: An item is neither, or there are two config files.
    """
    paths: list[Path] = []
    overrides: list[str] = []
    problems: list[str] = []
    for item in items:
        path = Path(item).expanduser()
        if _OVERRIDE.match(item) and not path.is_file():
            overrides.append(item)
        elif path.suffix.lower() in (".yaml", ".yml") or path.is_file():
            paths.append(path)
        else:
            expected = "a config file (.yaml) or section.key=value"
            problems.append(problem("command line", f"'{item}'", expected, "correct it, or see --help"))
    if len(paths) > 1:
        found = f"{len(paths)} config files ({', '.join(map(str, paths))})"
        problems.append(problem("command line", found, "one", "put what they share into one file"))
    if problems:
        raise ConfigError(problems)
    return (paths[0] if paths else None), overrides


def _default_config(required: bool) -> Path | None:
    named = os.environ.get("GEOSEG_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            found = f"no file {path.absolute()}"
            raise ConfigError(problem("$GEOSEG_CONFIG", found, "a YAML config", "correct or unset the variable"))
        return path
    path = Path("config.yaml")
    if path.is_file():
        return path
    if required:
        found = f"no config: none named, $GEOSEG_CONFIG not set, no file {path.absolute()}"
        raise ConfigError(problem("command line", found, "a config file", "name one: CONFIG.yaml"))
    return None


@contextmanager
def _library_warnings(log: Log) -> Iterator[None]:
    """Send the warnings and log records of libraries through our log, where they are shown once and counted."""
    handler = _Records(log)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings():

            def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
                log.warn(f"{' '.join(str(message).split())} ({category.__name__})")

            warnings.showwarning = show
            yield
    finally:
        logging.getLogger().removeHandler(handler)


class _Records(logging.Handler):
    """Takes what GDAL and other libraries log as warnings or errors."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warn(f"{' '.join(record.getMessage().split())} ({record.name.split('.')[0]})")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, once, so that cleaning up runs as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            os._exit(128 + number)  # a forked helper: its parent cleans up
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
