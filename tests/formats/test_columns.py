from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.formats.columns import Column


@given(st.lists(st.sampled_from(["a", "b", "", "é"]), max_size=8))
def test_a_column_is_a_sequence_of_texts(texts):
    column = Column.of(texts)
    assert [*column] == [column[i] for i in range(len(column))] == texts
    assert (column[1:3], column[::-1], len(column)) == (texts[1:3], texts[::-1], len(texts))
    assert [*column.counts().items()] == [*Counter(texts).items()]
    assert Column.of(column) is column
    assert [*column.mapped(str.upper)] == [text.upper() for text in texts]
    assert [*column.mapped(lambda text: text[:0])] == [""] * len(texts)
    assert column.each(len, np.int64).tolist() == [*map(len, texts)]
    for value in ("a", "b", "z"):
        if value in texts:
            assert column.index(value) == texts.index(value)
        else:
            with pytest.raises(ValueError, match="is not in"):
                column.index(value)
