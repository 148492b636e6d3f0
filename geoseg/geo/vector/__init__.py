"""Polygons of classes: read, repaired, reprojected, mapped to class ids and burnt into label rasters."""

from geoseg.geo.vector.burning import Coverage, burn, coverage
from geoseg.geo.vector.classes import ClassMapping
from geoseg.geo.vector.labels import read_labels
from geoseg.geo.vector.labelset import LabelReport, LabelSet, on_map
from geoseg.geo.vector.rules import LabelRules

__all__ = [
    "ClassMapping",
    "Coverage",
    "LabelReport",
    "LabelRules",
    "LabelSet",
    "burn",
    "coverage",
    "on_map",
    "read_labels",
]
