"""Phrases for the critical path."""

from __future__ import annotations

from paceline.results.path import PathSummary, SlackSummary
from paceline.trace import Job
from paceline.trace.kinds import kind_name
from paceline.whatif.critical_path import LAUNCH_DELAY

#: Most kinds named in a terminal line, and the least share of a named kind.
_TOP_KINDS, _MIN_SHARE = 4, 0.005


def kinds_text(path: PathSummary, all_reduces: bool = False) -> str:
    """``backward-compute 67%, forward-compute 31%, between operations 2%``."""
    kinds = {kind: share for kind, share in path.by_kind.items() if kind != LAUNCH_DELAY}
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    largest = [
        (kind_name(kind, all_reduces), share)
        for kind, share in ranked[:_TOP_KINDS]
        if share >= _MIN_SHARE
    ]
    delay = path.by_kind[LAUNCH_DELAY]
    remainder = 1 - delay - sum(share for _, share in largest)
    largest += [("all else", remainder)] if remainder >= _MIN_SHARE else []
    return ", ".join(
        f"{name} {share:.0%}" for name, share in [*largest, ("between operations", delay)]
    )


def leader_text(path: PathSummary, job: Job) -> str:
    """``worker dp 3, stage 1 has 62% of it, the most in 9 of 10 steps``."""
    leader = path.leading_worker
    n_steps = len(path.by_step)
    steps = f", the most in {leader.steps} of {n_steps} steps" if n_steps > 1 else ""
    name = job.worker_name(leader.dp, leader.pp)
    return f"worker {name} has {leader.share:.0%} of it{steps}"


def near_text(slack: SlackSummary, workers: int) -> str:
    """``16 of 2,048 workers are on it or within 1% of the step``."""
    are = "is" if slack.near_workers == 1 else "are"
    return f"{slack.near_workers:,} of {workers:,} workers {are} on it or within 1% of the step"
