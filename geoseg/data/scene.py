"""One scene: which image goes with which labels, and into which split."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from geoseg.data.splitnames import Split
from geoseg.geo.ground import GroundSource
from geoseg.geo.raster import key_of, local_files, stem

# A change of any of these changes the labels of a Shapefile.
_SHAPEFILE = (".shp", ".dbf", ".shx", ".prj", ".cpg")


@dataclass(frozen=True)
class Scene:
    """One raster with what is known of its ground.

    Attributes:
        image: The raster: a path, or a name that GDAL opens, or several joined by ``|``.
        labels: The vector file or label raster; None where there is none (a scene to classify).
        attribute: The attribute that holds the class, or the band of a label raster; None: every polygon is class 1.
        split: trn, val or tst.
        layer: The layer of the vector file; None: its only one.
        aoi: A vector file with the area of interest; outside of it everything is unknown. None: everywhere.
        bands: The bands to use of this image, by number or name; None: those of the config.
        nodata: The nodata value of the image, in place of what it says itself.
        weight: How often a pass over the training samples shows those of this scene.
        where: Where the scene is listed, for messages; not part of its identity.
    """

    image: Path | str
    labels: Path | str | None
    attribute: str | None
    split: Split
    layer: str | None = None
    aoi: Path | str | None = None
    bands: tuple[int | str, ...] | None = None
    nodata: float | None = None
    weight: float = 1.0
    where: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The image's file name, or what it is called if it is no single file."""
        return self.image.name if isinstance(self.image, Path) else stem(self.image)

    @property
    def scene_id(self) -> str:
        """The image's stem and 8 hex digits of a hash of what makes the scene: a file name, stable between runs."""
        parts = [key_of(self.image), _key(self.labels), self.attribute or "", self.layer or ""]
        if self.aoi is not None or self.bands is not None:
            parts += [_key(self.aoi), repr(self.bands)]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
        name = re.sub(r"[^\w.-]", "_", stem(self.image))
        return f"{name}-{digest}"

    @property
    def ground(self) -> GroundSource:
        """The files that say what is on the ground; only for a scene with labels."""
        assert self.labels is not None
        return GroundSource(self.labels, self.attribute, self.layer, self.aoi, self.image)

    def files(self) -> list[Path | str]:
        """Return what the scene is read from: the files on this machine, and names of what is not."""
        found: list[Path | str] = []
        for name in (self.image, self.labels, self.aoi):
            if name is not None:
                found += local_files(name) or [name]
        for path in list(found):
            if isinstance(path, Path) and path.suffix.lower() == ".shp":
                sides = [path.with_suffix(suffix) for suffix in _SHAPEFILE[1:]]
                found += [side for side in sides if side.is_file()]
        return found


def _key(name: Path | str | None) -> str:
    return "" if name is None else key_of(name)
