"""Choices of several controls: answers to different questions are never one class."""

import json

import pytest
from seen import labels

from fewtags.formats.labelstudio import read_labelstudio
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N = Label.POSITIVE, Label.NEGATIVE


@pytest.fixture
def read(tmp_path):
    """Reads tasks, each a list of (control, choice) or None."""

    def read(*tasks, **options):
        data = []
        for i, given in enumerate(tasks):
            result = [
                pair and {"type": "choices", "from_name": pair[0], "value": {"choices": [pair[1]]}} for pair in given
            ]
            data.append({"data": {"image": f"{i}.jpg"}, "annotations": [{"result": result}]})
        file = tmp_path / "t.json"
        file.write_text(json.dumps(data))
        return read_labelstudio(file, options=ReadOptions(**options))

    return read


def test_answers_are_states_of_the_class_that_the_control_is_called(read):
    table = read([("cat", "Yes"), ("dog", "no")], [("cat", "No"), ("dog", "unsure")])
    assert table.classes.ids == ("cat", "dog")
    assert labels(table) == {"0.jpg": {"cat": P, "dog": N}, "1.jpg": {"cat": N}}


def test_a_choice_of_two_controls_is_two_classes(read):
    table = read([("front", "dirty"), ("rear", "clean")], [("front", "new"), ("rear", "dirty")])
    assert table.classes.ids == ("clean", "front: dirty", "new", "rear: dirty")
    alone = read([("front", "dirty"), ("rear", "clean")], [("rear", "dirty")], columns=("front",))
    assert alone.classes.ids == ("dirty",)


def test_none_of_one_control_says_nothing_about_another(read):
    table = read([("animal", "cat"), ("plant", "none")], [("animal", "none"), ("plant", "oak")])
    assert labels(table) == {"0.jpg": {"cat": P, "oak": N}, "1.jpg": {"cat": N, "oak": P}}


def test_null_in_place_of_a_result_is_in_the_excluded_list(read):
    table = read([("animal", "cat"), None])
    assert [(e.item, e.reason) for e in table.notes.excluded] == [("task 1", "has None instead of a result")]


@pytest.mark.parametrize(
    "words", [("Ja", "Nein", "Unsicher"), ("Oui", "Non", "Peut-\xeatre"), ("Tak", "Nie", "Niepewne")]
)
def test_answers_in_other_languages(read, words):
    """Yes, No and Unsure were read, but "Unsicher" made classes of all three."""
    table = read(*([("cat", word)] for word in words))
    assert labels(table) == {"0.jpg": {"cat": P}, "1.jpg": {"cat": N}, "2.jpg": {}}
