"""Tables from results, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from fewtags.bench.located import masked_places, share_on_object
from fewtags.bench.protocol import Job, Protocol
from fewtags.bench.tables import best_trials, make_tables, markdown, mean_and_sd, page
from fewtags.labels import ClassNames
from fewtags.metrics.locate import Region
from fewtags.table.table import LabelTable

PART = {"labels": "a.json"}
SET = {"title": "COCO", "get": "there", "train": PART, "test": PART, "val_images": 2}
PROTOCOL = Protocol.model_validate(
    {
        **{"name": "p", "title": "A <title>", "source": "the paper, table 1", "seeds": 2, "sets": {"coco": SET}},
        "rows": {
            "an": {"label": "AN", "objective": {"name": "assume_negative"}, "grid": {"smoothing": [0.1, 0.2]}},
            "theirs": {"label": "a | b", "source": "others et al."},
        },
        "published": {"mAP": {"an": 70.04, "theirs": 65}},
    }
)


def record(val, test):
    return {"best": {"val": val, "mAP": test}, "last": {"val": 0.0, "mAP": 0.0}, "machine": "a GPU", "sizes": {}}


RUNS = {
    Job("coco", "", "an", f"smoothing={s}", seed): record(val, test)
    for (s, seed), (val, test) in {
        **{(0.1, 0): (50.0, 41.0), (0.2, 0): (51.0, 42.0), (0.1, 1): (53.0, 44.0), (0.2, 1): (52.0, 99.0)},
        (0.1, 2): (60.0, 50.0),  # the other combination is not done: no choice yet
    }.items()
}


def test_validation_chooses_for_each_seed():
    """42 and 44, not the better test value 99: mean 43, standard deviation sqrt(2)."""
    chosen = best_trials(PROTOCOL, RUNS)
    assert [(job.trial, job.seed) for job in chosen] == [("smoothing=0.2", 0), ("smoothing=0.1", 1)]
    assert markdown(make_tables(PROTOCOL, RUNS)) == (
        "# A <title>\n\n"
        "| method | test mAP | published |\n| --- | ---: | ---: |\n"
        "| AN | 43.0 ± 1.4 | 70.0 |\n| a \\| b [1] |  | 65.0 |\n\n"
        "Per cent on the test images, at the best epoch on validation: mean ± standard deviation over seeds (2).  \n"
        "Published: the paper, table 1.  \n[1] published by: others et al.  \nOurs: a GPU.  \n\n"
        "## Settings that validation chose\n\n"
        "| method | setting | validation mAP | test mAP | chosen by seeds |\n| --- | ---: | ---: | ---: | ---: |\n"
        "| AN | smoothing=0.1 | 54.3 ± 5.1 | 45.0 ± 4.6 | 1 of 3 |\n"
        "| AN | smoothing=0.2 | 51.5 ± 0.7 | 70.5 ± 40.3 | 1 of 2 |\n"
    )


def test_a_page():
    text = page(make_tables(PROTOCOL, RUNS))
    assert "<h1>A &lt;title&gt;</h1>" in text
    assert "<tr><td>AN</td><td>43.0 ± 1.4</td><td>70.0</td></tr>" in text
    assert text.count("<table>") == text.count("</table>") == 2


@pytest.mark.parametrize(("values", "text"), [([], ""), ([1.25], "1.2"), ([1, 2, 3], "2.0 ± 1.0")])
def test_mean_and_sd(values, text):
    assert mean_and_sd(values) == text


def test_other_numbers_of_images_are_reported():
    own = PROTOCOL.model_copy(
        update={"sets": {"coco": PROTOCOL.sets["coco"].model_copy(update={"sizes": {"train": 9}})}}
    )
    runs = {job: run | {"sizes": {"train": 8, "val": 2}} for job, run in RUNS.items()}
    assert make_tables(own, runs)[0].notes[-2] == "OTHER DATA than published: COCO, images of train 8 (published 9)."


# ------------------------------------------------------------------------------------------ where objects are


def test_masks_of_a_class_are_joined_and_crowds_count(tmp_path: Path):
    """4 x 4 pixels: column 0 as a crowd's run lengths, column 3 a polygon; a mask without a pixel becomes its box."""
    records = [
        {"image_id": 5, "category_id": 7, "iscrowd": 1, "segmentation": {"size": [4, 4], "counts": [0, 4, 12]}},
        {"image_id": 5, "category_id": 7, "segmentation": [[3, 0, 4, 0, 4, 4, 3, 4]], "bbox": [3, 0, 1, 4]},
        {"image_id": 5, "category_id": 8, "segmentation": [], "bbox": [1.2, 0, 0.5, 2]},
        {"image_id": 6, "category_id": 7, "segmentation": [], "bbox": [0, 0, 4, 4]},
    ]
    images = [{"id": i, "file_name": f"{i}.jpg", "height": 4, "width": 4} for i in (5, 6)]
    categories = [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"images": images, "annotations": records, "categories": categories}))
    nothing = np.zeros(0, np.int64)
    table = LabelTable.build(["x/5.jpg"], ClassNames.of(["dog", "cat"]), image=nothing, class_=nothing, state=nothing)
    (own,) = masked_places(file, table)
    blown_up = {c: place.mask.reshape(4, 56, 4, 56).mean((1, 3)).tolist() for c, place in own.items()}
    assert blown_up == {1: [[1, 0, 0, 1]] * 4, 0: [[0, 1, 0, 0]] * 2 + [[0] * 4] * 2}


def test_patches_on_the_object_by_hand():
    """Of 2 x 2 patches a box over the left half labels two, a mask over the upper half fills one of them: 1 of 2.

    The point (.9, .1) of another class, whose mask is everything, labels one patch, which is right: 2 of 3.
    """
    masks = np.zeros((2, 4, 4), np.bool_)
    masks[0, :2], masks[1] = True, True
    places = [{c: Region.from_mask(mask) for c, mask in enumerate(masks)}]
    boxes = np.array([[0, 0, 0.5, 1], [0.9, 0.1, 0.9, 0.1]])
    table = LabelTable.build(
        ["a"], ClassNames.of("ab"), image=np.zeros(2, int), class_=np.arange(2), state=np.ones(2, int), locations=boxes
    )
    assert share_on_object(table, places, (2, 2)) == 2 / 3
    assert share_on_object(table, [{}], (2, 2)) is None
