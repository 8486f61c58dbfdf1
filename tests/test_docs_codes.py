"""docs/codes.md has every code of the code, and no other; docs/monitor.md every metric."""

import re
from pathlib import Path
from typing import get_args

import requires
from paceline.detect.event import Kind
from paceline.diagnose import CAUSES as OF_DIAGNOSIS
from paceline.results.words.names import CAUSES, cause_name
from paceline.trace import warning

DOCS = Path(__file__).parents[1] / "docs"


def rows(heading: str) -> dict[str, list[str]]:
    """Code -> the other cells, of the table of a section."""
    text = (DOCS / "codes.md").read_text(encoding="utf-8")
    section = text[text.index(f"## {heading}\n") :].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("` "): row[1:] for row in cells}


def test_warnings():
    codes = {
        value for name, value in vars(warning).items() if name.isupper() and isinstance(value, str)
    }
    assert len(codes) > 15
    table = rows("Warnings of an analysis")
    assert set(table) == codes
    assert all(len(cells) == 2 and all(cells) for cells in table.values())


def test_causes_with_their_names():
    table = rows("Causes of findings")
    assert set(table) == set(CAUSES) >= set(OF_DIAGNOSIS)
    assert {code: cells[0] for code, cells in table.items()} == {c: cause_name(c) for c in CAUSES}


def test_events():
    # "hang" and "slow-start" are events of a job, not of a rank's detector.
    assert set(rows("Events of a fail-slow")) == {*get_args(Kind), "hang", "slow-start"}


def test_alerts():
    requires.installed("starlette", "sqlalchemy")
    from paceline.monitor.alerts.rule import KINDS

    assert set(rows("Alerts")) == set(KINDS)


def test_the_page_of_the_monitor_names_each_metric():
    requires.installed("prometheus_client")
    web = DOCS.parent / "src" / "paceline" / "monitor" / "web"
    text = (web / "metrics.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(paceline_\w+)"', text))
    text = (web / "job_metrics.py").read_text(encoding="utf-8")
    of_jobs = re.findall(r'^    (?:\(|yield )"(\w+)", "', text, re.M)
    assert len(of_jobs) > 12
    names |= {f"paceline_job_{name}" for name in of_jobs}
    page = (DOCS / "monitor.md").read_text(encoding="utf-8")
    assert len(names) > 20
    assert sorted(name for name in names if f"`{name}`" not in page) == []
