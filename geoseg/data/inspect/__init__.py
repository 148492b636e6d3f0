"""What scenes hold, looked at closely: pixels, polygons, how they fit, and the samples to expect. Writes nothing."""

from geoseg.data.inspect.expect import SampleCount, count_samples, plan_counts, store_bytes
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
    "inspect_scenes",
    "offset_text",
    "orientation",
    "plan_counts",
    "store_bytes",
    "unit",
    "with_counts",
]
