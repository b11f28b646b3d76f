"""Names that come from files reach terminals, file names and tables only as harmless text."""

import pytest

from fewtags.text import printable, safe_cell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;TITLE\x07", r"\x1b[31mred\x1b]0;TITLE\x07"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("\x9b31m\r", r"\x9b31m\x0d"),
        ("\udce9", r"\udce9"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Ünïcödé 猫 👩\u200d🔬", "Ünïcödé 猫 👩\u200d🔬"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", '=HYPERLINK("http://x","y")'])
def test_formulas_become_text(text):
    assert safe_cell(text) == f"'{text}"
    assert safe_cell(safe_cell(text)) == f"'{text}"


def test_a_tab_or_return_before_a_formula_helps_nobody():
    assert safe_cell("\t=1") == "'\t=1"
    assert safe_cell("\r=1") == r"'\x0d=1"


@pytest.mark.parametrize("text", ["cat", "a=b", "1", "", "'cat"])
def test_other_cells_stay(text):
    assert safe_cell(text) == text
