import json

import pytest
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.labelstudio import read_labelstudio
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def result(kind, names, control="label", size=(200, 100), **value):
    """One entry of `result`, with numbers in per cent."""
    shape = {"original_width": size[0], "original_height": size[1], "image_rotation": 0} if size else {}
    return {"id": "r1", "type": kind, "from_name": control, "value": {kind: names, **value}, **shape}


def rectangle(name, **more):
    return result("rectanglelabels", [name], **{"x": 10, "y": 10, "width": 20, "height": 20, "rotation": 0, **more})


def choice(*names, control="choice"):
    return result("choices", [*names], control, None)


def annotation(*results, **more):
    return {"id": 1, "completed_by": 1, "was_cancelled": False, "ground_truth": False, "result": [*results], **more}


def task(key, image, *annotations, **more):
    return {"id": key, "data": {"image": image}, "annotations": [*annotations], "predictions": [], **more}


@pytest.fixture
def write(tmp_path):
    def write(*tasks):
        file = tmp_path / "tasks.json"
        file.write_text(json.dumps(tasks))
        return file

    return write


def test_regions_and_choices(write):
    """Per cent of the photo: 10 10 and 20 x 20 is .1 .1 to .3 .3. Classes are sorted by name."""
    polygon = result("polygonlabels", ["dog"], points=[[50, 25], [75, 50], [60, 75]])
    file = write(
        task(3, "b.jpg", annotation(rectangle("dog"), choice("outdoor", "day"))),
        task(1, "sub/a.jpg", annotation(result("keypointlabels", ["cat"], x=50, y=25, width=0.5), polygon)),
        task(2, "c.jpg"),
    )
    table = read_labelstudio(file)
    assert table.classes.ids == ("cat", "day", "dog", "outdoor")
    assert table.images.to_pylist() == ["b.jpg", "sub/a.jpg", "c.jpg"]
    assert facts(table) == [
        ("b.jpg", "dog", P, (0.1, 0.1, 0.3, 0.3)),
        ("b.jpg", "outdoor", P, None),
        ("b.jpg", "day", P, None),
        ("sub/a.jpg", "cat", P, (0.5, 0.25, 0.5, 0.25)),
        ("sub/a.jpg", "dog", P, (0.5, 0.25, 0.75, 0.75)),
    ]
    assert labels(table)["c.jpg"] == {}
    assert readings(table) == {
        "rectanglelabels 'dog'": ("positive, with its box", 1),
        "choices 'outdoor'": ("positive", 1),
        "choices 'day'": ("positive", 1),
        "keypointlabels 'cat'": ("positive, with its point", 1),
        "polygonlabels 'dog'": ("positive, with its bounding box", 1),
        "task without annotation": ("nothing known", 1),
        "class that is not named in a task": ("unknown", 7),
    }
    assert table.notes.excluded == ()


def test_complete_closes_what_is_annotated(write):
    """b was looked at and left empty; c was not looked at."""
    file = write(task(1, "a.jpg", annotation(choice("cat", "dog"))), task(2, "b.jpg", annotation()), task(3, "c.jpg"))
    assert labels(read_labelstudio(file)) == {"a.jpg": {"cat": P, "dog": P}, "b.jpg": {}, "c.jpg": {}}
    assert readings(read_labelstudio(file))["annotation without result"] == ("nothing known", 1)
    complete = read_labelstudio(file, options=ReadOptions(complete=True))
    assert labels(complete) == {"a.jpg": {"cat": P, "dog": P}, "b.jpg": {"cat": N, "dog": N}, "c.jpg": {}}
    assert readings(complete)["annotation without result"] == ("none of the classes (complete)", 1)


def test_a_choice_none(write):
    file = write(task(1, "a.jpg", annotation(choice("None"))), task(2, "b.jpg", annotation(choice("cat"))))
    table = read_labelstudio(file)
    assert labels(table) == {"a.jpg": {"cat": N}, "b.jpg": {"cat": P}}
    assert readings(table)["choices 'None'"] == ("none of the classes", 1)
    assert read_labelstudio(file, options=ReadOptions(none_folder="")).classes.ids == ("None", "cat")


def test_several_annotators(write):
    """Both name the cat, one of them the dog: positive, or disputed if what is not named is absent."""
    one, other = annotation(choice("cat")), annotation(rectangle("cat"), choice("dog"))
    file = write(task(1, "a.jpg", one, other), task(2, "b.jpg", annotation(choice("cow"))))
    table = read_labelstudio(file)
    assert labels(table)["a.jpg"] == {"cat": P, "dog": P}
    assert "tasks.json: 1 task has several annotations; what any of them names is positive" in table.notes.messages
    complete = read_labelstudio(file, options=ReadOptions(complete=True))
    assert labels(complete) == {"a.jpg": {"cat": P, "cow": N}, "b.jpg": {"cat": N, "dog": N, "cow": P}}
    found = complete.summary()
    assert (found.contradictions, found.contradictions_inside) == (1, 0)  # people disagree; the file does not
    assert found.contradicting[0].sources == ("tasks.json", "tasks.json: another annotator")
    assert (
        "tasks.json: 1 label is named by one annotator of a task and not by another: unknown" in complete.notes.messages
    )


def test_an_annotator_who_names_nothing_disputes_all(write):
    file = write(task(1, "a.jpg", annotation(choice("cat")), annotation()))
    assert labels(read_labelstudio(file, options=ReadOptions(complete=True))) == {"a.jpg": {}}


def test_cancelled_annotations_drafts_and_predictions_do_not_count(write):
    cancelled = annotation(choice("dog"), was_cancelled=True)
    guess = {"result": [choice("cow")], "score": 0.9}
    file = write(
        task(1, "a.jpg", annotation(choice("cat")), cancelled, predictions=[guess, guess], drafts=[{"result": []}]),
        task(2, "b.jpg", cancelled),
    )
    table = read_labelstudio(file, options=ReadOptions(complete=True))
    assert table.classes.ids == ("cat",)
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {}}
    assert readings(table) == {
        "annotation that was cancelled": ("ignored", 2),
        "prediction": ("ignored", 2),
        "draft": ("ignored", 1),
        "choices 'cat'": ("positive", 1),
        "task without annotation": ("nothing known", 1),
        "class that is not named in a task": ("negative where there is an annotation (complete)", 1),
    }


def test_ground_truth_stands_for_all(write):
    truth = annotation(choice("cat"), ground_truth=True)
    table = read_labelstudio(write(task(1, "a.jpg", annotation(choice("dog")), truth)))
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert readings(table)["annotation beside one that is ground truth"] == ("ignored", 1)


def test_controls_that_are_chosen(write):
    file = write(task(1, "a.jpg", annotation(rectangle("cat"), choice("blurred", control="quality"))))
    table = read_labelstudio(file, options=ReadOptions(columns=("label",)))
    assert table.classes.ids == ("cat",)
    assert readings(table)["result of 'quality'"] == ("ignored, it is not among the columns", 1)
    with pytest.raises(DataError) as error:
        read_labelstudio(file, options=ReadOptions(columns=("qualty",)))
    assert str(error.value) == (
        f"{file}: no result is from 'qualty' (did you mean 'quality'?); there are 'label', 'quality'."
    )


def test_a_damaged_brush_mask_leaves_its_label(write):
    brush = result("brushlabels", ["cat"], format="rle", rle=[0, 1, 2])
    table = read_labelstudio(write(task(7, "a.jpg", annotation(brush))))
    assert facts(table) == [("a.jpg", "cat", P, None)]
    assert readings(table)["brushlabels 'cat'"] == ("positive, its region is not read", 1)
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        (
            "task 7, region r1 (cat)",
            "its brush mask cannot be read: draw a rectangle, polygon or keypoint to locate it; its label is kept",
        )
    ]
    assert "tasks.json: 1 box or point cannot be used, see the excluded list; its label is kept" in table.notes.messages


def test_results_that_are_no_labels(write):
    """A rectangle without labels, its labels apart from it, a text, a relation, and a region that nobody named."""
    shape = {"x": 10, "y": 10, "width": 20, "height": 20}
    file = write(
        task(
            1,
            "a.jpg",
            annotation(
                {"id": "q", "type": "rectangle", "value": shape},
                {"id": "q", "type": "labels", "from_name": "l", "value": {**shape, "labels": ["cat", "dog"]}},
                {"id": "t", "type": "textarea", "value": {"text": ["hm"]}},
                {"type": "relation", "from_id": "q", "to_id": "t"},
                {"id": "u", "type": "rectanglelabels", "value": shape},
            ),
        )
    )
    table = read_labelstudio(file)
    box = (0.1, 0.1, 0.3, 0.3)
    assert facts(table) == [("a.jpg", "cat", P, box), ("a.jpg", "dog", P, box)]
    assert {k: v for k, v in readings(table).items() if "type" in k} == {
        f"result of type {kind!r}": ("ignored", 1) for kind in ("rectangle", "textarea", "relation")
    }
    assert [(e.item, e.reason, e.where) for e in table.notes.excluded] == [
        ("task 1, region u", "has no label in 'rectanglelabels'", str(file))
    ]


def test_results_that_are_broken_are_not_lost_in_silence(write):
    """No type, no value, labels without a name, entries that are not results."""
    broken = [
        {"id": "n", "value": {"choices": ["cat"]}},
        {"id": "v", "type": "choices", "from_name": "c", "value": ["cat"]},
        {"id": "k", "type": "choices", "from_name": "c", "value": {"choices": ["cat", 7, None]}},
        {"id": "t", "type": "taxonomy", "from_name": "c", "value": {"taxonomy": [["cat", 7], [], None]}},
        {"id": "e", "type": "taxonomy", "from_name": "c", "value": {"taxonomy": "cat"}},
        "cat",
        None,
    ]
    file = write(task(1, "a.jpg", annotation(*broken)), task(2, "b.jpg", {"id": 1, "result": "cat"}))
    table = read_labelstudio(file)
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {}}
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("task 1, region n", "has no type", "unusable"),
        ("task 1, region v", "has no value", "unusable"),
        ("task 1, region k", "has 7 among its choices, which is not a name", "unusable"),
        ("task 1, region t", "has ['cat', 7] among its taxonomy, which is not a list of names", "unusable"),
        ("task 1, region e", "has no label in 'taxonomy'", "unusable"),
        ("task 1", "has 'cat' instead of a result", "unusable"),
        ("task 1", "has None instead of a result", "unusable"),
        ("task 2", "has 'cat' instead of a result", "unusable"),
    ]
    assert table.notes.warnings == ()


def test_choices_about_a_region_are_there(write):
    item = result("choices", ["ripe"], x=10, y=10, width=20, height=20)
    assert facts(read_labelstudio(write(task(1, "a.jpg", annotation(item))))) == [
        ("a.jpg", "ripe", P, (0.1, 0.1, 0.3, 0.3))
    ]


def test_boxes_follow_a_photo_that_exif_turns(write, make_photo):
    """Declared 200 x 100 as stored, with orientation 6: x' = 1 - y, y' = x; declared 100 x 200 it is so already."""
    make_photo("a.jpg", 1, size=(200, 100), orientation=6)
    stored = read_labelstudio(write(task(1, "a.jpg", annotation(rectangle("cat")))))
    assert facts(stored) == [("a.jpg", "cat", P, (0.7, 0.1, 0.9, 0.3))]
    shown = read_labelstudio(write(task(1, "a.jpg", annotation(rectangle("cat", size=(100, 200))))))
    assert facts(shown) == [("a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]
    unclear = read_labelstudio(write(task(1, "a.jpg", annotation(rectangle("cat", size=None)))))
    assert facts(unclear) == facts(shown)
    assert any("the displayed one is assumed" in message for message in unclear.notes.messages)


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("/data/upload/3/0a1b2c3d-my%20cat.jpg", "upload/3/0a1b2c3d-my cat.jpg"),
        ("/data/upload/3/0a1b2c3d-my%20cat.jpg", "0a1b2c3d-my cat.jpg"),
        ("/data/upload/3/0a1b2c3d-my%20cat.jpg", "my cat.jpg"),
        ("http://localhost:8080/data/upload/3/0a1b2c3d-cat.jpg", "cat.jpg"),
        ("/data/local-files/?d=sets%2Fcats/cat.jpg", "sets/cats/cat.jpg"),
        ("/data/local-files/?d=sets/cats/cat.jpg", "cat.jpg"),
        ("s3://bucket/sets/cat.jpg", "sets/cat.jpg"),
        ("https://x.org/a/cat.jpg?token=1", "cat.jpg"),
        ("sets/100%25 cat.jpg", "sets/100%25 cat.jpg"),
        (r"sets\cat.jpg", "sets/cat.jpg"),
        ("/data/local-files/?d=0a1b2c3d-cat.jpg", "0a1b2c3d-cat.jpg"),
    ],
)
def test_addresses_of_photos(write, make_photo, tmp_path, address, file):
    make_photo(f"photos/{file}")
    table = read_labelstudio(write(task(1, address, annotation(choice("cat")))), tmp_path / "photos")
    assert labels(table) == {file: {"cat": P}}


def test_photos_of_one_name_are_not_mixed_up(write, make_photo, tmp_path):
    """Without their folders or prefixes these would be one photo."""
    make_photo("photos/cat.jpg")
    addresses = ["/data/upload/1/0a1b2c3d-cat.jpg", "/data/upload/1/11111111-cat.jpg"]
    file = write(*(task(i, address, annotation(choice("cat"))) for i, address in enumerate(addresses)))
    with pytest.raises(DataError, match="2 of 2 photos do not exist"):
        read_labelstudio(file, tmp_path / "photos")
    assert len(read_labelstudio(file)) == 2


def test_a_photo_of_two_tasks(write):
    file = write(task(1, "a.jpg", annotation(choice("cat"))), task(2, "a.jpg", annotation(choice("dog"))))
    table = read_labelstudio(file)
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}}
    assert "tasks.json: 1 task names a photo that another one names, and is joined with it" in table.notes.messages


def test_which_key_holds_the_photo(write):
    both = {"left": "a.jpg", "right": "b.jpg", "text": "c"}
    file = write({"id": 1, "data": both, "annotations": [annotation(choice("cat"))]})
    with pytest.raises(DataError) as error:
        read_labelstudio(file)
    assert str(error.value) == (
        f"{file}: in the data of the tasks, 'left', 'right' may all be the photos; pass "
        "ReadOptions(image_column='NAME')."
    )
    assert read_labelstudio(file, options=ReadOptions(image_column="right")).images.to_pylist() == ["b.jpg"]
    with pytest.raises(DataError, match=r"no task has 'lefft' in data \(did you mean 'left'\?\); there are 'left',"):
        read_labelstudio(file, options=ReadOptions(image_column="lefft"))
    with pytest.raises(
        DataError,
        match=r"in the data of the tasks, none of 'text' is a photo; pass ReadOptions\(image_column='NAME'\)\.",
    ):
        read_labelstudio(write({"data": {"text": "c"}, "annotations": []}))


def test_tasks_without_a_photo_are_left_out(write):
    inline = "data:image/png;base64,AAAA"
    file = write(
        *(task(i, name, annotation(choice("cat"))) for i, name in enumerate(["a.jpg", "b.jpg", inline, "", None, 3]))
    )
    table = read_labelstudio(file)
    assert table.images.to_pylist() == ["a.jpg", "b.jpg"]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("task 2", "has its photo embedded in 'image'"),
        *((f"task {i}", "has no 'image' in data") for i in (3, 4, 5)),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"images": [], "annotations": []},
            "expected a list of tasks as Label Studio exports it; the file has 'images', 'annotations'.",
        ),
        (
            [{"id": 1, "image": "a.jpg", "label": []}],
            "task 1 of the list has 'id', 'image', 'label'; expected data and annotations. Export as 'JSON', not as "
            "'JSON-MIN'.",
        ),
        ([3], "task 1 of the list has 3; expected data and annotations. Export as 'JSON', not as 'JSON-MIN'."),
        (
            [{"data": {"image": "a.jpg"}}],
            "no task has annotations; export as 'JSON' after something is annotated.",
        ),
        ([], "no task has annotations; export as 'JSON' after something is annotated."),
        (
            [{"data": {"image": "a.jpg"}, "annotations": [5]}],
            "task 1 has numbers for annotations; export the annotations with the tasks.",
        ),
        ([{"data": {"image": "a.jpg"}, "annotations": {"a": 1}}], "annotations of task 1 is not a list."),
        (
            [{"data": {"image": "a.jpg"}, "annotations": []}],
            "no annotation names a class, so there is nothing to learn.",
        ),
    ],
)
def test_files_that_are_something_else(tmp_path, data, message):
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps(data))
    with pytest.raises(DataError) as error:
        read_labelstudio(file)
    assert str(error.value) == f"{file}: {message}"


@pytest.mark.parametrize(
    "odd", [3, None, [], {}, {"type": 3}, {"type": "choices"}, {"type": "choices", "value": {"choices": [3, None]}}]
)
def test_odd_results_do_no_harm(write, odd):
    table = read_labelstudio(write(task(1, "a.jpg", annotation(choice("cat"), odd))))
    assert labels(table) == {"a.jpg": {"cat": P}}


def test_what_is_not_read_is_named_if_nothing_is_left(tmp_path):
    result = {"type": "rating", "from_name": "t", "value": {"rating": 4}}
    file = tmp_path / "t.json"
    tasks = [{"data": {"image": "a.jpg"}, "annotations": [{"result": [result]}], "predictions": [{"result": []}]}]
    file.write_text(json.dumps(tasks))
    with pytest.raises(DataError, match=r"nothing to learn\. What is not read: .*prediction \(1\)") as error:
        read_labelstudio(file)
    assert "result of type 'rating' (1)" in str(error.value)


def taxonomy(*paths, control="tree", **more):
    return {"id": "t", "type": "taxonomy", "from_name": control, "value": {"taxonomy": [*paths], **more}}


def test_a_taxonomy_states_a_class_and_those_above_it(write):
    first = taxonomy(["Animal", "Dog"], ["Animal"], ["Plant"])
    file = write(task(1, "a.jpg", annotation(first)), task(2, "b.jpg", annotation(taxonomy(["Animal", "Cat"]))))
    table = read_labelstudio(file, options=ReadOptions(complete=True))
    assert labels(table) == {
        "a.jpg": {"Animal": P, "Dog": P, "Plant": P, "Cat": N},
        "b.jpg": {"Animal": P, "Dog": N, "Plant": N, "Cat": P},
    }
    found = readings(table)
    assert found["taxonomy 'Animal > Dog'"] == ("positive: Animal, Dog", 1)
    assert found["taxonomy 'Animal'"] == ("positive: Animal", 1)
    assert (table.notes.warnings, table.notes.excluded) == ((), ())


def test_names_at_several_places_of_a_taxonomy_stay_apart(write):
    result = taxonomy(["Animal", "other"], ["Plant", "other"], ["Plant", "none"])
    table = read_labelstudio(write(task(1, "a.jpg", annotation(result))))
    assert table.classes.ids == ("Animal", "Animal: other", "Plant", "Plant: none", "Plant: other")


def test_names_of_several_taxonomies_stay_apart_and_columns_choose(write):
    results = [taxonomy(["dirty"], control="front"), taxonomy(["dirty"], ["wet"], control="rear"), choice("wet")]
    file = write(task(1, "a.jpg", annotation(*results)))
    assert read_labelstudio(file).classes.ids == ("front: dirty", "rear: dirty", "wet")
    assert read_labelstudio(file, options=ReadOptions(columns=("front",))).classes.ids == ("dirty",)


def test_none_in_a_taxonomy(write):
    file = write(
        task(1, "a.jpg", annotation(taxonomy(["None"]))), task(2, "b.jpg", annotation(taxonomy(["Animal", "Dog"])))
    )
    assert labels(read_labelstudio(file)) == {"a.jpg": {"Animal": N, "Dog": N}, "b.jpg": {"Animal": P, "Dog": P}}


def test_a_taxonomy_about_a_region_is_there(write):
    item = taxonomy(["Animal", "Dog"], x=10, y=10, width=20, height=20)
    place = (0.1, 0.1, 0.3, 0.3)
    assert facts(read_labelstudio(write(task(1, "a.jpg", annotation(item))))) == [
        ("a.jpg", "Animal", P, place),
        ("a.jpg", "Dog", P, place),
    ]


def test_answers_that_name_no_class_are_counted(write):
    others = [
        {"id": "1", "type": "rating", "from_name": "r", "value": {"rating": 4}},
        {"id": "2", "type": "textarea", "from_name": "t", "value": {"text": ["a dog"]}},
        {"id": "3", "type": "textarea", "from_name": "t", "value": {"text": ["a dog"]}},
        {"id": "4", "type": "pairwise", "from_name": "p", "value": {"selected": "left"}},
        {"id": "5", "type": "ranker", "from_name": "k", "value": {"ranker": {"good": ["a"]}}},
        {"id": "6", "type": "rectangle", "from_name": "b", "value": {"x": 1, "y": 1, "width": 1, "height": 1}},
    ]
    table = read_labelstudio(write(task(1, "a.jpg", annotation(choice("cat"), *others))))
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert (
        "tasks.json: answers that name no class are not read: pairwise (1), ranker (1), rating (1), textarea (2)"
        in table.notes.messages
    )
