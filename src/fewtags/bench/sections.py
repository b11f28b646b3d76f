"""The sections of a protocol file: data sets, tasks, conditions, figures, purchases and rows."""

from __future__ import annotations

from typing import Any, Literal, final

from pydantic import Field

from fewtags.budget.purchase import Mode
from fewtags.config.sections import Settings


@final
class Part(Settings):
    """Labels and photos of one part of a data set; paths are relative to the folder of the data.

    Attributes:
        labels: a file or folder.
        images: the folder that image names are relative to; None: found as by `fewtags.read`.
        format: the name of the format; None: detected.
        split: the split of the labels that is meant; None: all of them.
        options: values of `ReadOptions`.
    """

    labels: str
    images: str | None = None
    format: str | None = None
    split: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


@final
class DataSet(Settings):
    """A data set in its published layout.

    Attributes:
        title: in tables.
        get: where to get the files.
        train: what is learned from; a condition may replace its labels.
        test: what is measured on.
        single: the folder of each test image names its single label, for the top-1 accuracy of ImageNet.
        draw: "cole": one positive of each training image, and a fifth of the images for validation (`cole_benchmark`);
            "none": the labels as they are; "purchase": what a budget buys.
        val_images: number of test images that validate, and are not measured on; 0: the fifth of "cole".
        monitor: the validation images are also measured on, because nothing is chosen with them.
        positives_per_image: K of the methods that have it; None: derived.
        objective: settings of rows that differ between data sets, by row.
        classes: COCO file whose categories give the order and the names of numbered classes; None without numbers.
        sizes: published numbers of images of train, val and test; others are reported.
    """

    title: str
    get: str
    train: Part
    test: Part
    single: bool = False
    draw: Literal["cole", "none", "purchase"] = "none"
    val_images: int = 0
    monitor: bool = False
    positives_per_image: float | None = None
    objective: dict[str, dict[str, Any]] = Field(default_factory=dict)
    classes: str | None = None
    sizes: dict[str, int] = Field(default_factory=dict)


@final
class Task(Settings):
    """A data set that a pretrained encoder is fine-tuned on.

    Attributes:
        title: in tables.
        get: where to get the files.
        kind: "coco" (boxes and masks), "voc" (boxes, VOC07+12), "cityscapes" (pixels), or "classes": a set of
            `transfer.sets`, which the task's name names.
        folder: in the folder of the data.
        any_size: numbers of photos other than the published ones are accepted; only of "classes".
        settings: of the fine-tuning: `DetectSettings`, `SegmentSettings` or `TrainSettings`; and of "classes" also
            "size", the side of the photos.
        sizes: published numbers of photos of train and test; others are reported.
    """

    title: str
    get: str
    kind: Literal["coco", "voc", "cityscapes", "classes"]
    folder: str
    any_size: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    sizes: dict[str, int] = Field(default_factory=dict)


@final
class Pretraining(Settings):
    """The photos that encoders are pretrained on, without labels; `photos` is a folder or file in that of the data."""

    photos: str
    get: str


@final
class Condition(Settings):
    """Which labels are known, or the value of a setting that a figure varies.

    Attributes:
        title: in tables and figures.
        labels: replaces those of `train`.
        settings: replaces values of the protocol's `settings`.
        objective: settings of all methods.
    """

    title: str
    labels: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    objective: dict[str, Any] = Field(default_factory=dict)


@final
class Figure(Settings):
    """A figure of the results. The name of a condition is its place on the axis, after a word for the curve, if any.

    Attributes:
        title: above the figure.
        kind: "curves": a measure against the conditions; "groups": a measure of each group of images or objects
            (`Protocol.details`); "scores": distributions of the highest probabilities of the validation images.
        measure: of "curves", a measure of the table, such as "val"; of "groups", the word before the groups.
        axis: what the horizontal axis shows.
        scale: of the horizontal axis; "even": the same distance between all conditions.
        rows: that are shown, in order; None: all that ran.
        known: names of the conditions that are shown, with wildcards; None: all.
        relative_to: a row; groups are then shown as the gain over it, in per cent of its value.
        ranks: of "scores": the highest probability (1), the second one, ...
    """

    title: str
    kind: Literal["curves", "groups", "scores"]
    measure: str = ""
    axis: str = ""
    scale: Literal["even", "linear", "log"] = "even"
    rows: tuple[str, ...] | None = None
    known: tuple[str, ...] | None = None
    relative_to: str | None = None
    ranks: tuple[int, ...] = (1,)


@final
class Purchase(Settings):
    """What budgets buy: a condition for each type of annotation and each budget.

    Attributes:
        budgets: see `budget_seconds`; a share is one of tagging every class in every training image.
        types: see `Annotation.of`.
        mode: see `simulate_budget`.
        cost: see `find_cost`; None: averages of the training images.
        points: "mask": drawn in each object's mask; "uniform", "centre": in its box, see `simulate_budget`.
        located_images: heatmaps are measured on so many test images; 0: not at all.
        masks: whether the test images have masks to measure them with; else boxes are.
    """

    budgets: tuple[str, ...]
    types: tuple[str, ...]
    mode: Mode
    cost: str | None = None
    points: Literal["mask", "uniform", "centre"]
    located_images: int
    masks: bool


@final
class Row(Settings):
    """A row of the table: a method, trained once for each combination of its `grid`.

    Attributes:
        label: in tables.
        objective: settings of the method beside the protocol's; None: only the published numbers are shown.
        grid: values of settings of the method that are searched; validation chooses, for each seed.
        labels: what is learned from.
        settings: replaces values of the protocol's `settings`.
        sets: data sets of the row; None: all.
        known: conditions of the row, or types of annotation (`Purchase`); None: all.
        tags: what replaces settings where only tags are bought.
        unlabelled: images without any label are trained on, too.
        untrained: the net as it is published, with its own classifier; nothing is trained.
        weights: the encoder is not pretrained but has these weights: "none" or "hub"; only with `tasks`.
        source: of the published numbers, if it is not the protocol's.
    """

    label: str
    objective: dict[str, Any] | None = None
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    labels: Literal["observed", "complete"] = "observed"
    settings: dict[str, Any] = Field(default_factory=dict)
    sets: tuple[str, ...] | None = None
    known: tuple[str, ...] | None = None
    tags: dict[str, Any] = Field(default_factory=dict)
    unlabelled: bool = False
    untrained: bool = False
    weights: str | None = None
    source: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the row is more than published numbers."""
        return self.objective is not None or self.untrained or self.weights is not None
