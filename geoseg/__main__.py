"""`python -m geoseg` and `geoseg`: lists the commands, or runs the one named first."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

import geoseg
from geoseg.errors import problem

_HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first word; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = available_commands()
    if not words or words[0] in _HELP:
        print(_overview(commands))
        return 0
    if words[0] == "--version":
        print(f"geoseg {geoseg.__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in commands:
        print(
            problem("command line", f"'{name}'", f"one of {', '.join(commands)}", "see python -m geoseg"),
            file=sys.stderr,
        )
        return 2
    exit_code: int = importlib.import_module(f"geoseg.{name}").main(rest)
    return exit_code


def available_commands() -> dict[str, str]:
    """Return the commands of this installation with their one-line descriptions."""
    from geoseg.cli import COMMANDS

    return {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(f"geoseg.{name}")}


def _overview(commands: dict[str, str]) -> str:
    lines = [
        f"geoseg {geoseg.__version__}: class maps of rasters with U-Nets that need little memory",
        "",
        "usage: python -m geoseg.COMMAND [CONFIG.yaml] [section.key=value ...] [--options]",
        "       geoseg COMMAND ...",
        "",
        *(f"  {name:<10} {text}" for name, text in commands.items()),
        "",
        "python -m geoseg.COMMAND --help says more; docs/config.md lists all keys.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
