import argparse

import pytest

from paceline.cli.numbers import parse_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", [3]),
        ("10-12,25", [10, 11, 12, 25]),
        ("5,1-3,2", [1, 2, 3, 5]),
        (" 7 , 9 - 9 ", [7, 9]),
        ("0-0", [0]),
    ],
)
def test_lists_and_ranges(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a number is missing in ''"),
        ("1,,2", "a number is missing in '1,,2'"),
        ("a", "'a' is neither a number nor a range in 'a'; write, for example, 10-20,25"),
        ("1-2-3", "'1-2-3' is neither a number nor a range"),
        ("-5", "'-5' is neither a number nor a range"),
        ("1.5", "'1.5' is neither a number nor a range"),
        ("1:5", "'1:5' is neither a number nor a range"),
        ("20-10", "the range 20-10 runs backwards"),
        ("0-99999999999", "names more than 1,000,000 numbers"),
        ("9223372036854775808", "9223372036854775808 is above 9223372036854775807"),
        ("1," + "9" * 5000, "a number has too many digits in '1,999"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        parse_numbers(text)
    assert message in str(error.value)
