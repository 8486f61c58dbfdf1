import re
import shlex
from pathlib import Path

import pytest
import yaml

from paceline.cli.main import build_parser
from paceline.fleet.columns import JOBS, RULES, STEPS
from paceline.fleet.manifest import COLUMNS

PAGE = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text(encoding="utf-8")


def cells(header: str) -> list[list[str]]:
    """The cells of the table below a header."""
    lines = PAGE[PAGE.index(header) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_describes_every_column():
    jobs, steps = PAGE.split("A row of `steps`:")
    for text, columns in ((jobs, JOBS), (steps, STEPS)):
        table = text[text.index("| column | type | unit | meaning |") :].partition("\n\n")[0]
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
        assert [(row[0].strip("`"), row[2], row[3]) for row in rows] == [
            (column.name, column.unit, column.about) for column in columns
        ]


def test_the_page_describes_the_rules_in_their_order_and_the_manifest():
    rows = cells("| rule | status | leaves out")
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(r.name, r.status) for r in RULES]
    names = [row[0].strip("`") for row in cells("| column | content |")]
    assert set(names[:-1]) == set(COLUMNS)


def commands() -> list[str]:
    lines = re.findall(r"^ {2,}(paceline fleet .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    return [*lines, manifest()["spec"]["entrypoint"]]


def manifest() -> dict[str, object]:
    """The KubeRay job; held against the CRD of KubeRay 1.7.0 by hand."""
    return yaml.safe_load(re.search(r"```yaml\n(apiVersion: ray.*?)```", PAGE, re.DOTALL)[1])


def test_the_kubernetes_job_has_what_a_ray_job_needs():
    job = manifest()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {
        container["image"]
        for group in groups
        for container in group["template"]["spec"]["containers"]
    }
    assert len(images) == 1


def test_the_commands_of_the_page_are_commands():
    assert len(commands()) == 8
    for command in commands():
        args = build_parser().parse_args(shlex.split(command)[1:])
        assert args.command == "fleet"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--timeout 0s", "should be above 0"),
        ("--timeout soon", "must be a number, not 'soon'"),
        ("--max-discrepancy -1", "share from 0 on"),
        ("--min-steps 2.5", "whole number from 0"),
        ("--memory lots", "bytes|GB"),
        ("--engine slurm", "must be local or ray, not 'slurm'"),
    ],
)
def test_options_that_mean_nothing_are_refused(option, message, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["fleet", "traces", "-o", "out", *option.split()])
    assert re.search(message, capsys.readouterr().err)
