"""Unique keys: what hashes and order say is what counting says."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewtags.table.keys
from fewtags.table.keys import repeated_key

words = st.text(st.sampled_from("ab\0é漢"), max_size=20)


def slow(keys):
    counts = Counter(keys)
    return max(counts.values(), default=1)


@pytest.mark.parametrize("block", [1, 3, 1000])
@given(keys=st.lists(words, max_size=12), start=st.integers(0, 3))
def test_the_same_as_counting(block, keys, start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewtags.table.keys, "_BLOCK", block)
        found = repeated_key(pa.array(keys, pa.string())[start:])
    keys = keys[start:]
    assert (found[1] if found else 1) == slow(keys)
    assert found is None or keys.count(found[0]) == found[1]


@given(st.lists(words, max_size=12, unique=True))
def test_equal_texts_have_equal_hashes_wherever_they_are(keys):
    """The hash of a key is that of the key alone in an array: its neighbours have no influence."""
    hashes = np.concatenate([*fewtags.table.keys._hashes(pa.array([*keys, ""]))])
    alone = [next(fewtags.table.keys._hashes(pa.array([key])))[0] for key in [*keys, ""]]
    assert hashes.tolist() == alone


def test_different_keys_of_equal_hashes_are_counted(monkeypatch):
    monkeypatch.setattr(fewtags.table.keys, "_hashes", lambda keys: [np.zeros(len(keys), np.uint64)])
    assert repeated_key(pa.array(["b", "a", "c"])) is None
    assert repeated_key(pa.array(["b", "a", "b"])) == ("b", 2)


def test_no_text_is_a_key_like_others():
    assert repeated_key(pa.array(["a", None, None], pa.string())) == (None, 2)
    assert repeated_key(pa.array(["a", None], pa.string())) is None
    assert repeated_key(pa.array([], pa.string())) is None


def test_keys_are_checked_once(monkeypatch):
    keys = pa.array(["b", "a"])
    assert repeated_key(keys) is None
    monkeypatch.setattr(fewtags.table.keys, "_hashes_differ", lambda _: pytest.fail("checked again"))
    assert repeated_key(keys) is None
    with pytest.raises(pytest.fail.Exception):
        repeated_key(pa.array(["b", "a"]))
