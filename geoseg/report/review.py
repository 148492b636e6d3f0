"""What a model does with the samples of a split, as sections of a report."""

from __future__ import annotations

import io

from PIL import Image

from geoseg.assess.confusion import whole_set
from geoseg.assess.review import Judged, Review
from geoseg.assess.tables import confusion_rows, scene_rows, score_rows
from geoseg.data.dataset import SampleDataset
from geoseg.data.preview import UNKNOWN
from geoseg.data.store import Store
from geoseg.learn.pictures import WRONG, sample_picture
from geoseg.report.curves import confusion_chart, reliability_chart
from geoseg.report.html import paragraph, raw_figure, row, section, swatches, table

_CHARTED_CLASSES = 16  # a confusion matrix of more does not fit a page
_SCENES_SHOWN = 100
_CELL = 150  # side of a shown sample, pixels


def review_sections(looked: Review, dataset: SampleDataset) -> list[str]:
    """Return scores by class and scene, the confusion matrix, the worst and best samples, and the calibration.

    Args:
        looked: What was found.
        dataset: The samples that were looked at.
    """
    return [
        *_scores(looked, dataset.store),
        section("Worst and best validation samples", *_samples(looked, dataset)),
        section("How sure the model is", *_sureness(looked)),
    ]


def _scores(looked: Review, store: Store) -> list[str]:
    names = [str(entry["name"]) for entry in store.info.classes]
    colours = [str(entry["colour"]) for entry in store.info.classes]
    scenes = looked.scenes
    everything = whole_set(scenes)
    columns = ["class", "IoU", "precision", "recall", "F1", "reference px", "predicted px"]
    by_class = [cells[: len(columns)] for cells in score_rows(everything, names)]
    chart = len(names) <= _CHARTED_CLASSES
    heads, counts = confusion_rows(everything, names)
    matrix = confusion_chart(everything.matrix, names) if chart else table(heads[:-1], [r[:-1] for r in counts])
    heads, by_scene = scene_rows(scenes, names)
    by_scene.sort(key=lambda cells: cells[2])
    more = len(by_scene) - _SCENES_SHOWN
    return [
        section(
            "Scores by class",
            table(columns, by_class, colours, strong_last=True),
            paragraph(
                f"With the weights of the best epoch, over {int(everything.matrix.sum()):,} known pixels of the "
                f"validation samples; {everything.unknown:,} unknown pixels are left out. A dash means that the score "
                "is not defined: the class is neither in the labels nor predicted, or one of the two lacks it.",
                quiet=True,
            ),
        ),
        section(
            "Confusion matrix",
            matrix,
            paragraph("In % of the pixels of the reference class." if chart else "In pixels.", quiet=True),
        ),
        section(
            "Scenes",
            table(heads, by_scene[:_SCENES_SHOWN]),
            paragraph("Worst first." + (f" {more} more are not shown." if more > 0 else ""), quiet=True),
        ),
    ]


def _samples(looked: Review, dataset: SampleDataset) -> list[str]:
    classes = dataset.store.info.classes
    legend = [(str(entry["name"]), str(entry["colour"])) for entry in classes]
    pieces = [swatches([*legend, ("unknown", _hex(UNKNOWN)), ("wrong", _hex(WRONG))])]
    for name, samples in (("worst", looked.worst), ("best", looked.best)):
        strips = [
            raw_figure(
                _strip(sample, dataset),
                "image/jpeg",
                f"{name} {number}: IoU {sample.mean_iou:.3f}, {100 * sample.accuracy:.1f} % right, {sample.scene}",
            )
            for number, sample in enumerate(samples, 1)
        ]
        pieces.append(row([f'<div style="width:{_CELL}px;overflow-wrap:anywhere">{strip}</div>' for strip in strips]))
    note = (
        "From top to bottom: image, label, prediction, errors. By the mean IoU over the classes that have a hundredth "
        "of the sample; the best are chosen among those whose label has several classes, if there are such."
    )
    return [*pieces, paragraph(note, quiet=True)]


def _strip(sample: Judged, dataset: SampleDataset) -> bytes:
    picture = sample_picture(dataset, sample.item, sample.predicted, _CELL)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=88, subsampling=0)
    return out.getvalue()


def _sureness(looked: Review) -> list[str]:
    return [
        reliability_chart(looked.reliability),
        paragraph(
            f"Expected calibration error {looked.reliability.expected_error:.3f}: how far, on average over the known "
            "pixels, the probability of the predicted class is from the share of pixels that are right. Bars below the "
            "dashed line: too sure; above it: less sure than it could be. The paler a bar, the fewer its pixels.",
            quiet=True,
        ),
    ]


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
