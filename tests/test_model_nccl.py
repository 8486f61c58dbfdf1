"""Measured all-reduce tables: reading, interpolation, and what lies beyond them."""

import math

import pytest

from paceline.errors import ModelError
from paceline.model.nccl import read_allreduce_table

HEADER = "gpus,bytes,out_of_place_ns,in_place_ns\r\n"


@pytest.fixture
def table(tmp_path):
    def write(rows, header=HEADER):
        path = tmp_path / "nccl.csv"
        path.write_text(header + rows)
        return read_allreduce_table(path)

    return write


def ring(gpus, size, latency_s=50e-6, bandwidth=200e9):
    return latency_s + 2 * (gpus - 1) / gpus * size / bandwidth


def rows(counts=(2, 8), sizes=(10**6, 10**7, 10**8, 10**9)):
    measured = [(n, size, round(ring(n, size) * 1e9)) for n in counts for size in sizes]
    return "".join(f"{n},{size},1,{ns}\r\n" for n, size, ns in measured)


def test_measured_points_are_returned_as_they_are(table):
    assert table("2,1000,9,400\n2,4000,9,800\n").interpolate(4000, 2) == (
        pytest.approx(800e-9),
        True,
    )


def test_between_sizes_and_counts_the_logarithms_are_linear(table):
    made = table("2,1000,9,400\n2,4000,9,800\n8,1000,9,800\n8,4000,9,1600\n")
    # Twice the bytes = half way in the logarithm; so are 4 GPUs between 2 and 8.
    assert made.interpolate(2000, 2)[0] == pytest.approx(400e-9 * math.sqrt(2))
    assert made.interpolate(1000, 4)[0] == pytest.approx(400e-9 * math.sqrt(2))


def test_beyond_the_table_the_ends_are_scaled_and_it_says_so(table):
    made = table("2,1000,9,400\n2,4000,9,800\n")
    assert made.interpolate(8000, 2) == (pytest.approx(1600e-9), False)
    assert made.interpolate(10, 2) == (pytest.approx(400e-9), False)
    # A ring of 4 sends 1.5 times the bytes, one of 2 once.
    assert made.interpolate(4000, 4) == (pytest.approx(1200e-9), False)


def test_nothing_to_reduce_takes_no_time(table):
    assert table(rows()).interpolate(0, 8) == (0.0, True)
    assert table(rows()).interpolate(10**6, 1) == (0.0, True)


def test_the_fit_finds_latency_and_bus_bandwidth(table):
    bandwidth, latency_s = table(rows()).fit_latency_bandwidth(8)
    assert bandwidth == pytest.approx(200e9, rel=1e-3)
    assert latency_s == pytest.approx(50e-6, rel=1e-3)


def test_a_count_that_was_not_measured_cannot_be_fitted(table):
    with pytest.raises(ModelError, match="no 4 GPUs; it has 2, 8"):
        table(rows()).fit_latency_bandwidth(4)


@pytest.mark.parametrize(
    ("content", "header", "said"),
    [
        ("", "gpus,size,in_place_ns\n", "lacks the columns bytes, out_of_place_ns"),
        ("", HEADER, "at least one GPU count"),
        ("2,1000,9,fast\n", HEADER, "line 2: in_place_ns must be a positive .* not 'fast'"),
        ("2,1000,9,-5\n", HEADER, "line 2: in_place_ns"),
        ("2,1000\n", HEADER, "line 2: in_place_ns"),
        ("2,1000,9,5\n2,1000,9,6\n", HEADER, "line 3: 2 GPUs and 1000 bytes stand there twice"),
        ("2,1000,9,5\n", HEADER, "1 size for 2 GPUs"),
        ("1,1000,9,5\n1,2000,9,5\n", HEADER, "1 GPU moves nothing"),
    ],
)
def test_a_wrong_table_says_where(table, content, header, said):
    with pytest.raises(ModelError, match=said):
        table(content, header)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_allreduce_table(tmp_path / "no.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"is no text \(UTF-8\), so no all-reduce table"):
        read_allreduce_table(tmp_path / "binary.csv")


def test_ends_of_the_table_are_covered(table):
    made = table("2,1000,9,400\n2,4000,9,800\n8,1000,9,800\n8,8000,9,1600\n")
    for size, gpus, inside in [
        (1000, 2, True), (4000, 2, True), (999, 2, False), (4001, 2, False),
        (8000, 8, True), (4000, 4, True), (4001, 4, False), (2000, 16, False),
    ]:  # fmt: skip
        assert made.covers(size, gpus) == inside
        assert made.interpolate(size, gpus)[1] == inside


def test_more_and_fewer_gpus_than_measured_send_as_a_ring_does(table):
    """2 (n - 1) / n: 1 for 2 ranks, 4/3 for 3, 3/2 for 4, 7/4 for 8, 15/8 for 16."""
    made = table("4,1000,9,600\n4,4000,9,600\n8,1000,9,700\n8,4000,9,700\n")
    assert made.interpolate(1000, 16) == (pytest.approx(700e-9 * (15 / 8) / (7 / 4)), False)
    assert made.interpolate(1000, 2) == (pytest.approx(600e-9 * 1 / (3 / 2)), False)
    assert made.interpolate(1000, 3) == (pytest.approx(600e-9 * (4 / 3) / (3 / 2)), False)


def test_three_sizes_are_joined_by_two_lines(table):
    made = table("2,1000,9,100\n2,4000,9,200\n2,16000,9,800\n")
    assert made.interpolate(2000, 2)[0] == pytest.approx(100e-9 * math.sqrt(2))
    assert made.interpolate(8000, 2)[0] == pytest.approx(400e-9)
    assert made.interpolate(4000, 2)[0] == pytest.approx(200e-9)


def test_blank_lines_spaces_and_a_mark_at_the_start_are_read(tmp_path):
    path = tmp_path / "nccl.csv"
    path.write_text(
        "\ufeffgpus, bytes ,out_of_place_ns,in_place_ns\n\n 2 ,1000,9,400\n2,4000,9,800\n"
    )
    made = read_allreduce_table(path)
    assert made.interpolate(1000, 2) == (pytest.approx(400e-9), True)
    assert made.source == str(path)


def test_one_missing_column_is_one(table):
    with pytest.raises(ModelError, match="lacks the column bytes;"):
        table("", "gpus,out_of_place_ns,in_place_ns\n")


@pytest.mark.parametrize("text", ["0", "1" * 19, "²"])
def test_numbers_out_of_range(table, text):
    with pytest.raises(ModelError, match="line 2: bytes must be a positive whole number"):
        table(f"2,{text},9,5\n")


def test_the_line_of_a_wrong_row_counts_blank_ones(table):
    with pytest.raises(ModelError, match="line 4: in_place_ns"):
        table("2,1000,9,5\n\n2,2000,9,x\n")


def test_times_that_fall_cannot_be_fitted_and_a_latency_is_not_negative(table):
    with pytest.raises(ModelError, match="of 2 GPUs do not grow"):
        table("2,1000,9,800\n2,4000,9,100\n").fit_latency_bandwidth(2)
    # 1 ns a byte less 200 ns: the least-squares line starts below 0
    assert table("2,1000,9,800\n2,4000,9,3800\n").fit_latency_bandwidth(2)[1] == 0.0
