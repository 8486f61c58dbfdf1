"""Cells of tables of runs, as users and as publishers write them."""

import pytest

from paceline.errors import ModelError
from paceline.plan.cells import Cells


def cells(published=False, **row):
    return Cells(row, "runs.csv:3: ", published)


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("1,024", 1024), ("1e3", 1000), ("", None), ("n/a", None), ("None", None)],
)
@pytest.mark.parametrize("published", [False, True])
def test_a_number_or_none(text, number, published):
    assert cells(published, gpus=text).number("gpus") == number


@pytest.mark.parametrize("text", ["eight", "1,2,345", "1234,567", "inf", "5%"])
@pytest.mark.parametrize("published", [False, True])
def test_no_number_is_refused_with_its_place(text, published):
    with pytest.raises(ModelError, match=r"^runs\.csv:3: gpus must be a number, not "):
        cells(published, gpus=text).number("gpus")


def test_published_tables_have_two_numbers_in_a_cell_and_words_for_none():
    for text, number in (("37556 (36108)", 37556), ("661[1]", None), ("nan", None), ("null", None)):
        if text == "661[1]":
            with pytest.raises(ModelError, match="must be a number"):
                cells(True, x=text).number("x")
        else:
            assert cells(True, x=text).number("x") == number
        with pytest.raises(ModelError, match="must be a number"):
            cells(False, x=text).number("x")


def test_whole_numbers_have_defaults():
    assert cells(tp="8.0").whole("tp") == 8
    assert cells(tp="").whole("tp", 1) == 1
    assert cells().whole("tp", 1) == 1
    for row, problem in (({"tp": "2.5"}, "must be a whole"), ({"tp": ""}, "is empty")):
        with pytest.raises(ModelError, match=f"tp {problem}"):
            cells(**row).whole("tp")
    with pytest.raises(ModelError, match="no column tp"):
        cells().whole("tp")


def test_switches_are_words_or_numbers():
    words = {"true": True, "Yes": True, "on": True, "1": True, "false": False, "0": False}
    assert {word: cells(x=word).flag("x", True) for word in words} == words
    assert cells(x="").flag("x", True)
    assert not cells().flag("x", False)


def test_words_are_in_small_letters():
    assert cells(x="Full").word("x", "bf16") == "full"
    assert cells(x="None").word("x", "full") == "none"
    assert [cells(x=x).word("x", "bf16") for x in ("", "N/A", "-")] == 3 * ["bf16"]


def test_counts_are_separated_by_blanks_or_commas():
    assert cells(layers="9 9,8").counts("layers") == (9, 9, 8)
    assert cells(layers="n/a").counts("layers") is None
    with pytest.raises(ModelError, match=r"layers must be whole numbers such as 9 9 8, not '9 x'"):
        cells(layers="9 x").counts("layers")
