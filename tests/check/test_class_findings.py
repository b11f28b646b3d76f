"""Findings about classes together, derived by hand; tables are rows of 1, -1 and 0."""

import json

import numpy as np
import pytest

from fewtags.check.check import check
from fewtags.check.class_findings import class_findings
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

P, N, U = 1, -1, 0


def table(rows, names="abcd"):
    dense = np.array(rows, np.int8)
    image, class_ = np.nonzero(dense)
    names = ClassNames.of(names[: dense.shape[1]])
    keys = [f"{i}.jpg" for i in range(len(dense))]
    return LabelTable.build(keys, names, image=image, class_=class_, state=dense[image, class_])


def found(rows, code):
    findings = [f for f in class_findings("train", table(rows)) if f.code == code]
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_imbalance_of_40_and_5():
    """Eight times as many; the class with 3 positives has a finding of its own already."""
    rows = [[P, N, N]] * 40 + [[N, P, N]] * 5 + [[N, N, P]] * 3
    finding = found(rows, "imbalance")
    assert finding.level == "warning"
    assert finding.items == ("b 5",)
    assert finding.message.startswith(
        "train: 1 class has positives at most a fifth of the 40 of 'a', down to 5 (8 to 1). mAP counts all classes"
    )
    content = json.loads(check({"train": table(rows)}).to_json())
    assert [f["items"] for f in content["findings"] if f["code"] == "imbalance"] == [["b 5"]]


@pytest.mark.parametrize(("few", "level"), [(19, "warning"), (20, "note"), (25, None)])
def test_imbalance_is_a_note_where_all_classes_have_enough(few, level):
    finding = found([[P, N]] * 100 + [[N, P]] * few, "imbalance")
    assert (finding and finding.level) == level


def test_classes_that_always_occur_together():
    """Positives alone show it; by chance, all of 6 in 12 photos would be the same with probability 1 / 64."""
    rows = [[P, P, U]] * 7 + [[U, U, P]] * 7
    finding = found(rows, "always-together")
    assert (finding.level, finding.items) == ("warning", ("a = b (7)",))
    assert found([[P, P, U]] * 6 + [[U, U, P]] * 6, "always-together") is None
    assert found([[P, P, U]] * 7 + [[U, U, P]] * 7 + [[P, U, U]], "always-together") is None


def test_classes_that_occur_only_with_another():
    """Every owl (7) is a bird (14 of 28); a class that is nearly everywhere is not reported."""
    rows = [[P, P]] * 7 + [[N, P]] * 7 + [[N, N]] * 14
    finding = found(rows, "only-with")
    assert (finding.level, finding.items) == ("note", ("a only with b (7)",))
    assert found([[P, P]] * 7 + [[N, P]] * 20 + [[N, N]], "only-with") is None


def test_classes_that_never_meet():
    """20 + 20 photos, each class known to be absent from the other's: 1 / 2 to the power of 20 by chance."""
    rows = [[P, N]] * 20 + [[N, P]] * 20
    assert found(rows, "never-together").items == ("a and b",)
    assert found([*rows, [P, P]], "never-together") is None
    assert found([[P, U]] * 20 + [[U, P]] * 20, "never-together") is None  # nothing is known to be absent
    assert found([[P, N]] * 6 + [[N, P]] * 6, "never-together") is None


def test_one_class_and_no_class():
    assert list(class_findings("train", table([[P]] * 9))) == []
    assert list(class_findings("train", table([[U, U]] * 9))) == []
