"""Tasks: one class per photo or several, validation photos, sampled photos."""

import numpy as np
import pytest

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.transfer.task import make_task, sample_photos, targets

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def table(rows, prefix="p", classes="abc"):
    """A table from rows of labels."""
    dense = np.array(rows, np.int8).reshape(-1, len(classes))
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        [f"{prefix}{i}.jpg" for i in range(len(dense))], ClassNames.of(classes), image=image, class_=class_,
        state=dense[image, class_],
    )  # fmt: skip


ONE_EACH = [[P, N, N], [N, P, N], [N, N, P]]
SEVERAL = [[P, P, N], [N, N, P]]


@pytest.mark.parametrize(
    ("train", "test", "kind"),
    [(ONE_EACH, ONE_EACH, "single"), (ONE_EACH, SEVERAL, "multi"), (SEVERAL, ONE_EACH, "multi")],
)
def test_the_kind_follows_from_the_labels(train, test, kind):
    assert make_task(table(train), table(test)).kind == kind


def test_an_explicit_kind_is_used():
    assert make_task(table(ONE_EACH), table(ONE_EACH), kind="multi").kind == "multi"


def test_tables_get_one_vocabulary():
    """Class b of the training photos is the first of the test's."""
    task = make_task(table([[P, N], [N, P]], classes="ab"), table([[P, N], [N, P]], classes="ba"))
    assert task.train.classes.ids == task.test.classes.ids == ("a", "b")
    assert targets(task.test, "test").tolist() == [1, 0]


def test_targets():
    assert targets(table(ONE_EACH[::-1]), "test").tolist() == [2, 1, 0]


def test_refusals():
    with pytest.raises(DataError) as error:
        make_task(table(ONE_EACH), table([*ONE_EACH, [P, P, N]]), kind="single")
    assert str(error.value) == (
        "1 of 4 test photos do not have exactly one class, for example 'p3.jpg' with 2; run the task as multi-label "
        "(--kind multi)."
    )
    with pytest.raises(DataError, match="no class has both known positives and known negatives in the test photos"):
        make_task(table(SEVERAL), table([[P, U, U], [P, P, U]]))
    only = "no class of the test has both known positives and known negatives in the training photos"
    with pytest.raises(DataError, match=only):  # every neighbour that is known would vote yes
        make_task(table([[P, U, U], [U, P, U], [U, U, P]]), table(SEVERAL))
    with pytest.raises(DataError, match="negatives in the validation photos"):
        make_task(table(SEVERAL), table(SEVERAL, "t"), table([[P, U, U], [P, P, U]], "v")).for_choice(0)
    with pytest.raises(DataError, match="the test labels have no photos; give labels that have some"):
        make_task(table(ONE_EACH), table([]))


def test_classes_that_training_cannot_tell_apart_are_named():
    """Class a is positive wherever it is known in training; b and c can be learned."""
    assert make_task(table([[P, P, N], [U, N, P]]), table(SEVERAL, "t")).unlearned == ("a",)
    assert make_task(table(ONE_EACH), table(ONE_EACH, "t")).unlearned == ()


def test_settings_are_chosen_on_the_validation_photos():
    task = make_task(table(ONE_EACH), table(ONE_EACH, "t"), table(ONE_EACH, "v"))
    choice = task.for_choice(0)
    assert choice.test is task.val
    assert choice.train is task.train
    assert choice.val is None


def test_without_validation_photos_a_fifth_is_held_out():
    task = make_task(table(ONE_EACH * 5), table(ONE_EACH, "t"))
    choice = task.for_choice(0)
    parts = [set(t.images.to_pylist()) for t in (choice.train, choice.test)]
    assert [len(part) for part in parts] == [12, 3]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == set(task.train.images.to_pylist())


def test_sample_photos_of_each_class():
    """Class c has one photo only; the others give two."""
    whole = table(ONE_EACH + [[P, N, N], [N, P, N]] * 4)
    chosen = sample_photos(whole, per_class=2, seed=1)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert whole.subset(chosen).matrix.counts(P).tolist() == [2, 2, 1]


def test_sample_a_share():
    whole = table(ONE_EACH * 5)
    drawn = [sample_photos(whole, share=0.4, seed=seed).tolist() for seed in (0, 0, 1)]
    assert len(drawn[0]) == 6
    assert drawn[0] == drawn[1] == sorted(set(drawn[0]))
    assert drawn[0] != drawn[2]
    assert len(sample_photos(whole, share=0.001)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give either a share of the training photos or a number of photos per class"),
        ({"share": 0.5, "per_class": 1}, "give either a share"),
        ({"share": 0.0}, "the share of the training photos must be above 0 and at most 1, got 0"),
        ({"share": 1.5}, "at most 1, got 1.5"),
        ({"per_class": 0}, "photos per class must be 1 or more, got 0"),
    ],
)
def test_sample_photos_refuses(options, words):
    with pytest.raises(ConfigError, match=words):
        sample_photos(table(ONE_EACH), **options)
