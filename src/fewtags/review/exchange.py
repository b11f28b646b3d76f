"""Questions as tasks of other tools: Label Studio, CVAT and FiftyOne. Pure functions of questions and photo sizes.

Layouts are those of the tools' own documentation: Label Studio's "Import pre-annotated data" (basic JSON), CVAT's "XML
annotation format" 1.1 for images, and FiftyOne's `FiftyOneImageDetectionDataset`. None of the tools is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fewtags.review.questions import Question

Sizes = Mapping[str, tuple[int, int]]
"""Width and height of each photo as it is displayed."""

LOCAL_FILES = "/data/local-files/?d="
"""Address of files that Label Studio serves itself, below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
ANSWERS = ("Yes", "No", "Unsure")
LIKELY = 0.5  # from this probability on, the answer Yes is filled in


def by_image(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Return the questions of each image; images in the order of their first question."""
    found: dict[str, list[Question]] = {}
    for question in questions:
        found.setdefault(question.image, []).append(question)
    return found


def label_studio_tasks(questions: Sequence[Question], sizes: Sizes, prefix: str = LOCAL_FILES) -> list[dict[str, Any]]:
    """Return one task for each photo, with pre-annotations, for a project with `label_studio_config`.

    Each class is a control with the choices Yes, No and Unsure, which `fewtags train` reads as positive, negative and
    unknown. Only the classes in the photo's text "ask" are meant; others can stay empty. Yes is filled in for
    probabilities from one half on. Where the model sees a class is a rectangle without a label, so that it says nothing
    about the class when it is read again; its text names the class.

    Args:
        questions: from `suggest`.
        sizes: width and height by image.
        prefix: what Label Studio needs before the name of a photo.
    """
    tasks = []
    for image, asked in by_image(questions).items():
        width, height = sizes[image]
        result: list[dict[str, Any]] = []
        for n, q in enumerate(asked):
            shared = {"to_name": "image", "original_width": width, "original_height": height, "score": q.probability}
            if q.probability >= LIKELY:
                result.append(
                    {
                        **shared,
                        "id": f"answer{n}",
                        "from_name": q.class_,
                        "type": "choices",
                        "value": {"choices": ["Yes"]},
                    }
                )
            if q.box is not None:
                x0, y0, x1, y1 = (100 * corner for corner in q.box)
                value = {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0, "rotation": 0}
                place = {"id": f"box{n}", "from_name": "evidence", "type": "rectangle", "meta": {"text": [q.name]}}
                result.append({**shared, **place, "value": value})
        data = {
            "image": prefix + quote(image),
            "ask": ", ".join(q.name for q in asked),
            "why": "; ".join(q.reason for q in asked),
        }
        score = max(q.probability for q in asked)
        tasks.append({"data": data, "predictions": [{"model_version": "fewtags", "score": score, "result": result}]})
    return tasks


def label_studio_config(questions: Sequence[Question]) -> str:
    """Return the labelling interface, XML, of a Label Studio project for `label_studio_tasks`."""
    view = Element("View")
    SubElement(view, "Image", name="image", value="$image")
    SubElement(view, "Header", value="Ask: $ask")
    SubElement(view, "Rectangle", name="evidence", toName="image")
    names = {q.class_: q.name for q in questions}
    for class_, name in names.items():
        SubElement(view, "Header", value=name, size="5")
        choices = SubElement(view, "Choices", name=class_, toName="image", choice="single", showInline="true")
        for answer in ANSWERS:
            SubElement(choices, "Choice", value=answer)
    indent(view)
    return str(tostring(view, "unicode")) + "\n"


def cvat_annotations(questions: Sequence[Question], sizes: Sizes) -> str:
    """Return annotations for CVAT's upload "CVAT for images 1.1": a box, or a tag without one, for each question.

    The annotator deletes what is wrong. CVAT has no answer "no", so what is deleted is unknown when it is read again.
    """
    root = Element("annotations")
    SubElement(root, "version").text = "1.1"
    labels = SubElement(SubElement(SubElement(root, "meta"), "task"), "labels")
    for class_ in dict.fromkeys(q.class_ for q in questions):
        SubElement(SubElement(labels, "label"), "name").text = class_
    for n, (image, asked) in enumerate(by_image(questions).items()):
        width, height = sizes[image]
        node = SubElement(root, "image", id=str(n), name=image, width=str(width), height=str(height))
        for q in asked:
            if q.box is None:
                SubElement(node, "tag", label=q.class_, source="auto")
                continue
            x0, y0, x1, y1 = (f"{corner * side:.2f}" for corner, side in zip(q.box, (width, height) * 2, strict=True))
            SubElement(node, "box", label=q.class_, source="auto", occluded="0", xtl=x0, ytl=y0, xbr=x1, ybr=y1)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + str(tostring(root, "unicode")) + "\n"


def fiftyone_labels(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the labels.json of a `FiftyOneImageDetectionDataset`; its `data_path` is the folder of the photos.

    A question without a box has the whole photo as its box. Boxes are x, y, width, height in 0..1.
    """
    labels: dict[str, list[dict[str, Any]]] = {}
    for q in questions:
        x0, y0, x1, y1 = q.box or (0.0, 0.0, 1.0, 1.0)
        facts = {"rank": q.rank, "expected": q.expected, "gain": q.gain, "reason": q.reason}
        labels.setdefault(_stem(q.image), []).append(
            {
                "label": q.class_,
                "confidence": q.probability,
                "bounding_box": [x0, y0, x1 - x0, y1 - y0],
                "attributes": facts,
            }
        )
    return {"labels": labels}


def _stem(image: str) -> str:
    """Return the key of a photo without the ending of its file name."""
    folder, slash, name = image.rpartition("/")
    return folder + slash + (name.rpartition(".")[0] or name)
