"""What known labels say about a run: positives per image, and what can be ranked."""

import numpy as np
import pytest
from PIL import Image
from single_labels import SINGLE, from_rows

from fewtags.config.sections import DataConfig
from fewtags.engine.label_counts import can_rank, positives_per_image
from fewtags.engine.tables import Tables, read_tables
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

COMPLETE = [[1, 1, 1, -1], [1, -1, -1, -1]]  # two positives per image on average


def test_k_from_complete_validation_images():
    """Ten times a row with three positives and ten with one: 2. Incomplete rows do not count."""
    tables = Tables(from_rows(SINGLE), from_rows(COMPLETE * 10 + SINGLE * 5))
    assert positives_per_image(tables) == (
        2.0,
        "positives per image: 2.00, the mean of 20 completely labelled val images",
    )


def test_k_from_complete_training_images_where_validation_has_too_few():
    train = from_rows(SINGLE * 3 + [[1, -1, -1, -1]] * 20)
    assert positives_per_image(Tables(train, from_rows(COMPLETE * 9))) == (
        1.0,
        "positives per image: 1.00, the mean of 20 completely labelled train images",
    )


def test_k_is_a_guess_where_nothing_is_complete():
    """One of four images has two annotated labels, two have one: (2 + 1 + 1) / 3 x 1.5 = 2."""
    train = from_rows([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, -1], [0, 0, 0, -1]])
    assert positives_per_image(Tables(train, from_rows(SINGLE))) == (
        pytest.approx(2.0),
        "positives per image: 2.00, a guess (1.5 x the 1.33 annotated), since fewer than 20 images are completely "
        "labelled. `fewtags estimate-k` estimates it; or count the classes in twenty photos and set "
        "data.positives_per_image.",
    )


def test_k_says_that_it_is_limited_by_the_number_of_classes():
    """Three of four classes are annotated in each image: 1.5 x 3 is more than the classes there are."""
    mean, why = positives_per_image(Tables(from_rows([[1, 1, 1, 0]] * 5), from_rows([[1, 1, 1, 0]])))
    assert mean == 4
    assert why.startswith(
        "positives per image: 4.00, a guess (1.5 x the 3.00 annotated, but not more than the 4 classes), "
    )


def test_photos_of_val_leave_training_and_are_found_in_the_training_folder(tmp_path):
    for n in range(6):
        path = tmp_path / "photos" / ("Cat" if n % 2 else "Dog") / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (n, 0, 0)).save(path)
    (tmp_path / "val.csv").write_text("image,cat,dog\nCat/1.png,1,0\nDog/2.png,0,1\n")
    tables = read_tables(DataConfig(train=str(tmp_path / "photos"), val=str(tmp_path / "val.csv")), seed=0)
    assert len(tables.train) == 4
    assert len(tables.val) == 2
    assert tables.val.classes.ids == ("Cat", "Dog")
    assert tables.val.matrix.dense().tolist() == [[1, -1], [-1, 1]]
    assert "train: 2 photos are also in val (2), and left out of training; 4 of 6 remain" in tables.train.notes.messages
    (tmp_path / "own.csv").write_text("image,cat,dog\n1.png,1,0\n")
    own = DataConfig(
        train=str(tmp_path / "photos"), val=str(tmp_path / "own.csv"), val_images=str(tmp_path / "photos" / "Cat")
    )
    assert len(read_tables(own, seed=0).train) == 5


def test_k_from_known_positives_and_negatives():
    """a: 20 of 40, b: 10 of 40, c: 30 of 40; d, known in four cells, stands in for its 3 of 63 annotations.

    (1/2 + 1/4 + 3/4) / (60 / 63) = 1.575; the guess would be 1.5 x 63 / 40.
    """
    rows = np.zeros((40, 4), np.int8)
    for class_, positives in enumerate((20, 10, 30)):
        rows[:, class_] = -1
        rows[:positives, class_] = 1
    rows[:4, 3] = (1, 1, 1, -1)
    rows[4:, 3] = 0
    mean, why = positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))
    assert mean == pytest.approx(1.575)
    assert why.startswith("positives per image: 1.58, the sum over classes of positives / known training cells")


@pytest.mark.parametrize(
    ("known", "images"),
    [
        pytest.param(30, 400, id="fewer than a quarter of the cells"),
        pytest.param(15, 40, id="fewer than twenty cells a class"),
    ],
)
def test_k_is_a_guess_where_too_few_cells_are_known(known, images):
    rows = np.zeros((images, 4), np.int8)
    rows[:known] = [1, -1, -1, 0]
    rows[0] = [1, 1, 1, 0]
    mean, why = positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))
    assert mean == pytest.approx(1.5 * (known + 2) / known)
    assert "a guess" in why


def test_k_is_a_guess_where_most_annotations_are_of_classes_without_negatives():
    rows = np.zeros((40, 4), np.int8)
    rows[:, 0] = -1
    rows[:2, 0] = 1
    rows[:, 1] = 1
    assert positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))[0] == pytest.approx(1.5 * 42 / 40)


def test_a_guess_is_never_more_than_there_are_classes():
    rows = [[1, 1, 1, 0]] * 3
    assert positives_per_image(Tables(from_rows(rows), from_rows(SINGLE)))[0] == 4.0
    one = LabelTable.build(["x"], ClassNames.of(["a"]), image=[0], class_=[0], state=[1])
    assert positives_per_image(Tables(one, one))[0] == 1.0


def test_complete_images_without_a_positive_tell_nothing():
    """The guess is taken where twenty empty photos give a mean of 0."""
    assert positives_per_image(Tables(from_rows(SINGLE), from_rows([[-1] * 4] * 20)))[0] == 1.5


def test_what_can_be_ranked():
    assert can_rank(from_rows(COMPLETE)) is True
    assert can_rank(from_rows(SINGLE)) is False
    # Positives of one class and negatives of another.
    assert can_rank(from_rows([[1, -1, 0, 0]])) is False
    assert can_rank(from_rows([[-1] * 4])) is False
