"""The parts of a scene's maps on disk: each appears by rename when it is complete, and is not computed again.

<folder>/.<scene>_parts/
  run.json                    what the parts were made of; parts of anything else are thrown away
  r0000000_c0000000/          a part: rows and columns at which it begins
    classes.tif classes_1.tif classes_2.tif     its tiles, and those of its overviews
    part.json                 its counts
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoseg.data.counting import count_classes
from geoseg.errors import DataError, problem
from geoseg.geo.grid import Window
from geoseg.geo.raster import Level, RasterWriter, TileFile, create_tiles, finish_part, level_shapes, part_file
from geoseg.predict.blocks import ClassBlock
from geoseg.predict.counting import MapCounts
from geoseg.predict.outputs import MapOutput

_IDS = "ids"  # among the arrays of a block: its class ids, for counting
_OVERVIEWS = 2  # of a part; with more, tiles of neighbouring parts would be needed


class PartStore:
    """The parts of one scene.

    Args:
        folder: Where they lie.
        outputs: The maps that are made.
        shape: (height, width) of the scene.
        num_classes: Number of classes, for the counts.
    """

    def __init__(self, folder: Path, outputs: Sequence[MapOutput], shape: tuple[int, int], num_classes: int) -> None:
        self.folder, self.outputs, self.num_classes = folder, tuple(outputs), num_classes
        self._shape = shape
        self.levels = min(1 + _OVERVIEWS, len(level_shapes(*shape)))

    def begin(self, made_of: str, resume: bool) -> None:
        """Make the folder; parts of an earlier run are kept if it was the same and `resume` is wanted.

        Raises:
            DataError: The folder cannot be made.
        """
        record = self.folder / "run.json"
        try:
            if not (resume and record.is_file() and record.read_text(encoding="utf-8") == made_of):
                self.remove()
            self.folder.mkdir(parents=True, exist_ok=True)
            for unfinished in self.folder.glob(".*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            hidden = record.with_name("run.json.tmp")
            hidden.write_text(made_of, encoding="utf-8")
            hidden.replace(record)
        except OSError as error:
            found = f"a folder that cannot be made ({error.strerror})"
            raise DataError(
                problem(self.folder.parent, found, "a writable place", "choose another output folder")
            ) from error

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
        """Remove all parts; quietly, if there are none."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_empty(self) -> bool:
        """Tell whether no part is complete."""
        return not any(self.folder.glob("r*_c*"))

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
        folder.replace(self._store.path(part))
        self._part = None
        waiting, self._waiting = self._waiting, []
        for window, values in waiting:
            self._place(window, values)

    def _temporary(self, part: Window) -> Path:
        path = self._store.path(part)
        return path.with_name(f".{path.name}")


def as_record(facts: dict[str, Any]) -> str:
    """Return facts as the text that tells runs apart."""
    return json.dumps(facts, sort_keys=True, default=lambda value: np.asarray(value).tolist())
