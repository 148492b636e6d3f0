"""The kinds of failure that a user can mend, each with its exit code.

Everything else that is raised is a defect of geoseg and ends in a traceback (exit code 1).
"""

from __future__ import annotations

from collections.abc import Sequence


class GeosegError(Exception):
    """A failure that the user can mend: one line per problem.

    Args:
        problems: One line, or several, each saying where, what was found, what was expected and what to do.
    """

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[GeosegError], tuple[tuple[str, ...]]]:
        # Worker processes send errors home by pickle; without this a subclass would come back re-wrapped.
        return type(self), (self.problems,)


class ConfigError(GeosegError):
    """The config file, an override or the command line is wrong."""


class DataError(GeosegError):
    """A raster, a vector file, a list of scenes or a sample store is wrong."""


class ModelFileError(GeosegError):
    """A model file or checkpoint is missing, damaged, or made for something else."""


class CapacityError(GeosegError):
    """The work did not fit in memory."""

    exit_code = 3


class ScenesFailed(GeosegError):
    """Some scenes failed; the others are done."""

    exit_code = 4


class Interrupted(GeosegError):
    """The user or the system asked the process to stop."""

    exit_code = 130


def problem(where: object, found: str, expected: str, remedy: str) -> str:
    """Return the one line that tells a user what is wrong and what to do.

    Args:
        where: File, key path or scene.
        found: What was found there.
        expected: What geoseg needs.
        remedy: What the user can do.
    """
    line = f"{where}: found {found}, expected {expected}; {remedy}"
    return " ".join(line.split())
