"""The parts of a scene's maps on disk: each appears by rename when it is complete, and is not computed again.

<folder>/.<scene>_parts/
  0123456789abcdef/             a run: a hash of all that decides its bytes
    run.json                    what that is
    r0000000_c0000000/          a part: rows and columns at which it begins
      classes.tif classes_1.tif classes_2.tif     its tiles, and those of its overviews
      part.json                 its counts

Processes that make the same maps at the same time use one another's parts. Those that would make other maps of the same
name are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.data.counting import count_classes
from geoseg.data.locks import in_use, locked
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster import Level, RasterWriter, TileFile, create_tiles, finish_part, level_shapes, part_file
from geoseg.learn.files import being_made
from geoseg.predict.blocks import ClassBlock
from geoseg.predict.counting import MapCounts
from geoseg.predict.outputs import MapOutput

_IDS = "ids"  # among the arrays of a block: its class ids, for counting
_RUN_DIGITS = 16
_OVERVIEWS = 2  # of a part; with more, tiles of neighbouring parts would be needed


class PartStore:
    """The parts of one scene.

    Args:
        home: The folder of the scene's parts; that of the maps is its parent.
        made_of: All that decides their bytes, as text.
        outputs: The maps that are made.
        shape: (height, width) of the scene.
        num_classes: Number of classes, for the counts.

    Attributes:
        run: A hash of `made_of`.
        folder: Where the parts of this run lie.
    """

    def __init__(
        self, home: Path, made_of: str, outputs: Sequence[MapOutput], shape: tuple[int, int], num_classes: int
    ) -> None:
        self.home, self.outputs, self.num_classes = home, tuple(outputs), num_classes
        self.run = hashlib.sha256(made_of.encode()).hexdigest()[:_RUN_DIGITS]
        self.folder = home / self.run
        self._made_of, self._shape = made_of, shape
        self.levels = min(1 + _OVERVIEWS, len(level_shapes(*shape)))

    @contextlib.contextmanager
    def at_work(self, keep: bool) -> Iterator[bool]:
        """Hold the folder while parts are made; yields whether no other process is making the same.

        Parts that nobody is at work on are thrown away: those of other runs, and without `keep` those of this one too.

        Raises:
            DataError: Another process is making other maps of the same name, or the folder cannot be made.
        """
        alone = self._begin(keep)
        try:
            with in_use(self.home):
                if self._others():
                    found = (
                        "maps of the same name that another process is making, of another image or with other options"
                    )
                    remedy = "wait for it, or choose another output folder"
                    raise DataError(problem(self.home.parent, found, "one run at a time", remedy))
                yield alone
        finally:
            self._leave()

    def _begin(self, keep: bool) -> bool:
        with being_made(self.home.parent):
            self.home.mkdir(parents=True, exist_ok=True)
            with locked(self.home) as alone:
                if alone:
                    self._clear(keep)
                if alone or not self._others():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    hidden = self.folder / f".run-{uuid.uuid4().hex[:8]}.json"
                    hidden.write_text(self._made_of, encoding="utf-8")
                    hidden.replace(self.folder / "run.json")
        return alone

    def _clear(self, keep: bool) -> None:
        """Remove what runs have left that were not this one, or did not end well."""
        kept = self.folder if keep else None
        unfinished = [] if kept is None else list(kept.glob(".*"))
        for path in [*(path for path in self.home.iterdir() if path != kept), *unfinished]:
            shutil.rmtree(path, ignore_errors=True)
            if path.is_file():
                path.unlink()

    def _others(self) -> list[Path]:
        try:
            return [p for p in self.home.iterdir() if p != self.folder and not p.name.startswith(".") and p.is_dir()]
        except FileNotFoundError:
            return []

    def _leave(self) -> None:
        """Remove the folder if there is nothing in it to go on from, and nobody else is at work."""
        with locked(self.home) as alone:
            if alone and self.is_empty():
                shutil.rmtree(self.home, ignore_errors=True)

    @contextlib.contextmanager
    def finishing(self, parts: Sequence[Window]) -> Iterator[bool]:
        """Put maps together while nobody else does; yields whether all parts are there, and removes them afterwards.

        Where some are missing, somebody may have been sooner.
        """
        with locked(self.folder, wait=True):
            whole = all(self.has(part) for part in parts)
            yield whole
            if whole:
                self.remove()

    def path(self, part: Window) -> Path:
        """Return the folder of a part."""
        return self.folder / f"r{part.row_off:07d}_c{part.col_off:07d}"

    def has(self, part: Window) -> bool:
        """Tell whether a part is complete."""
        return self.path(part).is_dir()

    def counts(self, parts: Sequence[Window]) -> MapCounts:
        """Return the sum of the counts of complete parts."""
        total = MapCounts.zero(self.num_classes)
        for part in parts:
            total += MapCounts.from_dict(json.loads((self.path(part) / "part.json").read_text(encoding="utf-8")))
        return total

    def map_levels(self, output: MapOutput, parts: Sequence[Window]) -> list[Level]:
        """Return the tiles of a map and of those of its overviews that its parts hold."""
        shapes = level_shapes(*self._shape)
        return [
            Level(
                *shapes[level],
                [
                    TileFile(
                        part_file(self.path(part) / f"{output.name}.tif", level),
                        part.row_off >> level,
                        part.col_off >> level,
                    )
                    for part in parts
                ],
            )
            for level in range(self.levels)
        ]

    def remove(self) -> None:
        """Remove all parts at once; quietly, if there are none."""
        gone = self.home / f".gone-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(FileNotFoundError):
            self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def is_empty(self) -> bool:
        """Tell whether no part is complete."""
        return not any(self.home.glob("*/r*_c*"))

    @contextlib.contextmanager
    def writing(self, run: Sequence[Window], counts: MapCounts) -> Iterator[RunWriter]:
        """Yield what writes the parts of a run, from above; what is incomplete when the block ends is removed."""
        writer = RunWriter(self, run, counts)
        try:
            yield writer
        finally:
            writer.close()


class RunWriter:
    """Writes blocks into the parts that lie below one another; each part is committed when its last pixel comes.

    Blocks come row by row. One that reaches below the part at hand waits for the next.

    Args:
        store: Where parts go.
        run: The parts, from above.
        counts: What whoever hands over the blocks found in them so far; it is emptied into each part.
    """

    def __init__(self, store: PartStore, run: Sequence[Window], counts: MapCounts) -> None:
        self._store, self._counts = store, counts
        self._mark = uuid.uuid4().hex[:8]  # another process may be making the same part
        self._coming = list(run)
        self._part: Window | None = None
        self._missing = 0
        self._waiting: list[tuple[Window, dict[str, NDArray[Any]]]] = []
        self._stack = contextlib.ExitStack()
        self._writers: dict[str, RasterWriter] = {}

    def write(self, block: ClassBlock) -> None:
        """Write a block into all maps."""
        values = {output.name: output.encode(block) for output in self._store.outputs}
        self._place(block.window, {**values, _IDS: block.classes})

    def close(self) -> None:
        """Remove the part that is not complete, if there is one."""
        if self._part is not None:
            # Whatever keeps a file from being closed, the part is thrown away.
            with contextlib.suppress(DataError):
                self._stack.close()
            shutil.rmtree(self._temporary(self._part), ignore_errors=True)
            self._part = None

    def _place(self, window: Window, values: dict[str, NDArray[Any]]) -> None:
        part = self._part or self._open()
        inside = window.intersection(part)
        if inside is None:
            self._waiting.append((window, values))
            return
        rows, cols = inside.within(window)
        here = inside.shifted(-part.row_off, -part.col_off)
        for name, writer in self._writers.items():
            writer.write(values[name][..., rows, cols], here)
        self._counts.classes += count_classes(values[_IDS][rows, cols], self._store.num_classes)
        self._missing -= inside.height * inside.width
        if inside.row_stop < window.row_stop:
            below = Window(inside.row_stop, window.col_off, window.row_stop - inside.row_stop, window.width)
            rows, cols = below.within(window)
            self._waiting.append((below, {name: array[..., rows, cols].copy() for name, array in values.items()}))
        if self._missing == 0:
            self._commit()

    def _open(self) -> Window:
        part = self._part = self._coming.pop(0)
        self._missing = part.height * part.width
        folder = self._temporary(part)
        folder.mkdir()
        self._stack = contextlib.ExitStack()
        self._writers = {
            output.name: self._stack.enter_context(
                create_tiles(folder / f"{output.name}.tif", part.height, part.width, output.profile)
            )
            for output in self._store.outputs
        }
        return part

    def _commit(self) -> None:
        part = self._part
        assert part is not None
        folder = self._temporary(part)
        self._stack.close()
        for output in self._store.outputs:
            levels = [Level(part.height, part.width, [TileFile(folder / f"{output.name}.tif")])]
            finish_part(levels, self._store.levels, output.profile, output.resampling)
        (folder / "part.json").write_text(json.dumps(self._counts.taken().to_dict()), encoding="utf-8")
        self._part = None
        try:
            folder.replace(self._store.path(part))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            if not self._store.has(part):
                raise
        waiting, self._waiting = self._waiting, []
        for window, values in waiting:
            self._place(window, values)

    def _temporary(self, part: Window) -> Path:
        path = self._store.path(part)
        return path.with_name(f".{path.name}-{self._mark}")


def as_record(facts: dict[str, Any]) -> str:
    """Return facts as the text that tells runs apart."""
    return json.dumps(facts, sort_keys=True, default=lambda value: np.asarray(value).tolist())
