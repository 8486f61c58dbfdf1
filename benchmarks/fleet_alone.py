"""Figures of a study against those computed from ``paceline analyze --json`` of each trace alone.

    python benchmarks/fleet_alone.py [--synth 300] [--foreign 30]

Plain loops over the documents of lone analyses know neither the study's tables nor its arrays. Each
number must agree to 1e-9. The correlation (Figure 11) is in no such document, so it is left out.
"""

import argparse
import contextlib
import io
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import mean

from fleet_truth import make_foreign, make_synth

from paceline.cli.main import run
from paceline.fleet.definitions import KINDS
from paceline.fleet.run import RunOptions, fleet

STRAGGLING, TOLERANCE = 1.1, 1e-9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synth", type=int, default=300)
    parser.add_argument("--foreign", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        make_synth(folder / "traces", args.synth, 0)
        make_foreign(folder / "traces", args.foreign, 0)
        study = fleet(folder / "traces", folder / "study", run=RunOptions(processes=args.processes))
        alone = [document(path) for path in sorted((folder / "traces").glob("trace-*"))]
    print("rows:", study.about["counts"])
    worst = 0.0
    for name, (ours, theirs) in comparisons(study, [d for d in alone if d]).items():
        apart = difference(ours, theirs)
        worst = max(worst, apart)
        print(f"{name}: {len(theirs):,} numbers, largest difference {apart:.1e}")
    return 0 if worst <= TOLERANCE else 1


def document(path: Path) -> dict | None:
    """What ``analyze --json`` says of a trace; None where it refuses or a rule leaves it out."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run(["analyze", str(path), "--json"])
    found = json.loads(out.getvalue()) if code == 0 else None
    if found is None or len(found["steps"]) < 2 or found["discrepancy"] > 0.05:
        return None
    return found


def comparisons(study, alone: list[dict]) -> dict[str, tuple[list, list]]:
    """Name -> numbers of the study, numbers of the loops."""
    slow = [job for job in alone if job["slowdown"] >= STRAGGLING]
    wastes = [max(1 - 1 / job["slowdown"], 0.0) for job in alone]
    hours = [hours_of(job) for job in alone]
    numbers = {name: study.figure(name).numbers for name in study.figures}
    m_w = [job for job in slow if job["m_w"] is not None]
    pairs = {
        "Figure 3": (curve(study, "waste", "waste"), sorted(wastes)),
        "Figure 4": (
            curve(study, "steps", "steps"),
            sorted(s / job["slowdown"] for job in slow for s in job["by_step"].values()),
        ),
        "Figure 6": (curve(study, "m_w", "M_W"), sorted(cut(job["m_w"]) for job in m_w)),
        "Figure 7": (curve(study, "m_s", "M_S"), last_stage(alone)),
        "Figure 7, straggling": (curve(study, "m_s_slow", "M_S"), last_stage(slow)),
        "section 6": (
            [value for value in curve(study, "discrepancy", "discrepancy") if value <= 0.05],
            sorted(job["discrepancy"] for job in alone),
        ),
        "headlines": (
            [
                numbers["waste"]["straggling"].value,
                numbers["waste"]["gpu_hours_wasted"].value,
                numbers["m_w"]["above_half"].value,
                numbers["m_w"]["mean_slowdown"].value,
                numbers["m_s"]["at_least_half"].value,
                study.summary["saved"]["gpu_hours"],
            ],
            [
                len(slow) / len(alone),
                sum(w * h for w, h in zip(wastes, hours, strict=True)) / sum(hours),
                sum(job["m_w"] > 0.5 for job in m_w) / len(m_w),
                mean(job["slowdown"] for job in m_w),
                sum(m_s >= 0.5 for m_s in last_stage(alone)) / len(last_stage(alone)),
                sum(gain_of(job) * h for job, h in zip(alone, hours, strict=True)),
            ],
        ),
    }
    for kind, label in KINDS.items():
        values = [max(1 - 1 / j["by_kind"][kind], 0.0) for j in alone if j["by_kind"].get(kind)]
        if values:
            pairs[f"Figure 5, {label}"] = (curve(study, "kinds", label), sorted(values))
    return pairs


def curve(study, figure: str, name: str) -> list[float]:
    return list(study.figure(figure).curves[name].values)


def hours_of(job: dict) -> float:
    return job["job"]["world_size"] * sum(job["step_time_s"]["traced"].values()) / 3600


def gain_of(job: dict) -> float:
    return max([0.0, *(remedy["gain"] for remedy in job["remedies"])])


def last_stage(jobs: list[dict]) -> list[float]:
    values = [0.0 if job["job"]["pp_size"] == 1 else job["m_s"] for job in jobs]
    return sorted(cut(value) for value in values if value is not None)


def cut(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest, relative above 1; infinite where there are not as many."""
    if len(ours) != len(theirs):
        return math.inf
    return max(
        (abs(a - b) / max(abs(b), 1.0) for a, b in zip(ours, theirs, strict=True)), default=0
    )


if __name__ == "__main__":
    sys.exit(main())
