"""``paceline detect``: files, streams, and what is wrong with them."""

import io
import json

import numpy as np
import pytest

from paceline.cli.main import run


def said(capsys, *args):
    code = run(["detect", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def rows(steps=400, ranks=2, onset=250):
    x = np.random.default_rng(0).normal(1.0, 0.01, (steps, ranks))
    x[onset:, 1] *= 1.5
    return [(step, rank, x[step, rank]) for step in range(steps) for rank in range(ranks)]


def written(path, head, lines):
    path.write_text("\n".join([head, *(",".join(map(str, line)) for line in lines)]) + "\n")
    return path


def test_a_file_in_any_order(capsys, tmp_path):
    samples = rows()
    np.random.default_rng(1).shuffle(samples)
    table = [(int(s), int(r) + 100, d) for s, r, d in samples]
    path = written(tmp_path / "it.csv", "step,rank,duration_s", [*table, table[0]])
    code, out, err = said(capsys, path)
    assert code == 0
    assert "rank 101: 1.5" in out
    assert "since step 250" in out
    assert "400 steps of 2 ranks: 1 fail-slows, 1 ranks slow at the end" in out
    assert "sorted" in err
    assert "1 samples repeat a step" in err


def test_starts_instead_of_durations_and_json(capsys, tmp_path):
    start, lines = 0.0, []
    for step, rank, seconds in rows():
        if rank == 1:
            lines.append((step, start))
            start += seconds
    path = written(tmp_path / "it.csv", "step,start_s", lines)
    code, out, _ = said(capsys, path, "--json")
    (event,) = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert (event["kind"], event["since_step"], event["ranks"]) == ("onset", 250, [0])


def test_parquet(capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    step, rank, seconds = zip(*rows(), strict=True)
    table = pa.table({"step": step, "rank": rank, "duration_s": seconds, "host": ["x"] * len(step)})
    pq.write_table(table, tmp_path / "it.parquet")
    code, out, _ = said(capsys, tmp_path / "it.parquet")
    assert code == 0
    assert "since step 250" in out


def test_a_stream_of_json_lines(capsys, monkeypatch):
    lines = [json.dumps({"step": s, "rank": r, "duration_s": d}) for s, r, d in rows()]
    lines.insert(300, json.dumps({"step": 3, "rank": 0, "duration_s": 1.0}))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, err = said(capsys, "-", "--ranks", 2)
    assert code == 0
    assert out.startswith("step 252: rank 1 is 1.")
    assert "1 samples came after their step was over" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("step,duration\n1,2\n", "lacks the columns duration_s (or start_s)"),
        ("stepp,duration_s\n1,2\n", "did you mean stepp?"),
        ("step,duration_s\n1,fast\n", "row 1: duration_s must be a number, not 'fast'"),
        ("step,duration_s\n1.5,2\n", "row 1: step must be a whole number"),
        ("step,duration_s\n1,2,3\n", "has 3 cells, the header 2"),
        ("step,duration_s\n1,2\n", "has 1 steps; the first 50 are the warm-up"),
        ("step,duration_s\n", "holds no sample"),
        ("{not json\n", "is no JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, tmp_path, text, words):
    path = tmp_path / "it.csv"
    path.write_text(text)
    code, out, err = said(capsys, path)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_files_and_streams_that_cannot_be(capsys, monkeypatch, tmp_path):
    assert "No such file" in said(capsys, tmp_path / "none.csv")[2]
    assert "No such file" in said(capsys, tmp_path / "none.parquet")[2]
    (tmp_path / "x.parquet").write_bytes(b"nope")
    assert "is no parquet file" in said(capsys, tmp_path / "x.parquet")[2]
    monkeypatch.setattr("sys.stdin", io.StringIO('{"step": 1, "rank": 5, "duration_s": 1}\n'))
    code, _, err = said(capsys, "-")
    assert code == 2
    assert "say --ranks N" in err


def test_the_papers_method(capsys, tmp_path):
    path = written(tmp_path / "it.csv", "step,rank,duration_s", rows())
    code, out, _ = said(capsys, path, "--method", "bocd")
    assert code == 0
    assert "rank 1: 1.5" in out
    code, _, err = said(capsys, path, "--method", "bocd", "--threshold", 0.2)
    assert code == 2
    assert "--threshold is for --method medians" in err
