"""What scenes hold, looked at closely: pixels, polygons, how they fit, and the samples to expect. Writes nothing."""

from geoseg.data.inspect.expect import SampleCount, count_samples, disk_bytes, plan_counts
from geoseg.data.inspect.scene import (
    Inspection,
    SceneReport,
    crs_name,
    inspect_scenes,
    offset_text,
    orientation,
    unit,
    with_counts,
)

__all__ = [
    "Inspection",
    "SampleCount",
    "SceneReport",
    "count_samples",
    "crs_name",
    "disk_bytes",
    "inspect_scenes",
    "offset_text",
    "orientation",
    "plan_counts",
    "unit",
    "with_counts",
]
