"""JSON of tools that are not read: the message says what it is and what to do."""

import json

import pytest

from fewtags.errors import DataError
from fewtags.formats.read import read


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            [{"version": "5.0", "shapes": [], "imagePath": "a.jpg"}],
            "looks like LabelMe, which has a file for each",
        ),
        ({"_via_settings": {}, "_via_img_metadata": {}}, "looks like a project of VGG Image Annotator"),
        ({"a.jpg1": {"filename": "a.jpg", "regions": []}}, "looks like VGG Image Annotator"),
        ([{"image": "a.jpg", "annotations": []}], "looks like Create ML"),
        ({"description": "", "size": {}, "objects": [], "tags": []}, "looks like Supervisely"),
        ([{"image_id": 1, "category_id": 1, "score": 0.5}], "looks like results of a detector; predictions are not"),
        ({"a.jpg": ["cat"], "b.jpg": []}, "is an object with an entry for each photo"),
        ([{"file": "a.jpg", "tags": ["cat"]}], "write one object per line instead, into a file that ends in .jsonl"),
        ([{"id": 1, "image": "a.jpg", "choice": "cat"}], "Export as 'JSON', not as 'JSON-MIN'"),
        ({"info": {}}, "expected a list 'images' as in COCO instances files"),
    ],
)
def test_other_tools(tmp_path, data, text):
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(data))
    with pytest.raises(DataError) as error:
        read(file)
    assert text in str(error.value)


def test_lines_of_json_with_another_ending(tmp_path):
    file = tmp_path / "labels.json"
    file.write_text('{"image": "a.jpg"}\n{"image": "b.jpg"}\n')
    with pytest.raises(DataError, match=r"if each line is an object of its own, call the file \.jsonl\."):
        read(file)
