import pytest

from paceline.errors import ModelError
from paceline.model.csv_table import read_csv


def table(folder, content):
    path = folder / "t.csv"
    path.write_bytes(content)
    return read_csv(path, "table of tests")


def test_cells_are_stripped_and_empty_lines_left_out(tmp_path):
    found = table(tmp_path, "\ufeffa , b\n1, 2\n\n ,\n3\n4,5,6\n".encode())
    assert found.columns == ("a", "b")
    assert found.lines == ((2, ("1", "2")), (5, ("3",)), (6, ("4", "5", "6")))
    assert found.rows() == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}, {"a": "4", "b": "5"}]
    assert found.ragged() == {5: "has 1 cells, the header 2", 6: "has 3 cells, the header 2"}


def test_an_empty_file_has_no_columns(tmp_path):
    assert table(tmp_path, b"").columns == ()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\x00", r"is no text \(UTF-8\), so no table of tests in CSV"),
        (b'a,b\n"1,2\n', "is no CSV"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, content, why):
    with pytest.raises(ModelError, match=why):
        table(tmp_path, content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"the table of tests .* cannot be read: No such file"):
        read_csv(tmp_path / "none.csv", "table of tests")
