"""The critical path on the terminal and in ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.whatif.critical_path import LAUNCH_DELAY, CriticalPath
from paceline.whatif.segments import Sort
from paceline.whatif.slack import Slack

if TYPE_CHECKING:
    from rich.text import Text

#: Workers listed in ``by_worker``; a path rarely passes more.
TOP_WORKERS = 32

#: Kinds that a line of the terminal names, and the least share worth naming.
_TOP_KINDS, _LEAST = 4, 0.005


def path_mapping(path: CriticalPath) -> dict[str, Any]:
    """The path as JSON knows it; ``docs/result-json.md`` lists the keys."""
    steps = [str(step) for step in path.steps.tolist()]
    (dp, pp), kind = path.leading_worker.name, path.leading_kind
    worker = path.leading_worker
    return {
        "step_s": dict(zip(steps, path.step_s.tolist(), strict=True)),
        "by_sort": dict(path.by_sort),
        "by_kind": dict(path.by_kind),
        "by_stage": {str(stage): share for stage, share in path.by_stage.items()},
        "by_worker": _workers(path),
        "leading_worker": {"dp": dp, "pp": pp, "share": worker.share, "steps": worker.n_steps},
        "leading_kind": {"kind": kind.name, "share": kind.share, "steps": kind.n_steps},
        "by_step": {step: _of_step(path, index) for index, step in enumerate(steps)},
        "slack": None if path.slack is None else _slack(path.slack),
    }


def _workers(path: CriticalPath) -> list[list[float]]:
    """[dp, pp, share] of the workers with the largest shares."""
    shares = path.by_worker
    order = np.argsort(-shares, axis=None, kind="stable")[:TOP_WORKERS]
    pp, dp = np.unravel_index(order, shares.shape)
    rows = zip(dp.tolist(), pp.tolist(), shares[pp, dp].tolist(), strict=True)
    return [[d, p, share] for d, p, share in rows if share > 0]


def _of_step(path: CriticalPath, index: int) -> dict[str, Any]:
    """Shares of one step."""
    length = float(path.step_s[index])
    workers = path.worker_s[index]
    pp, dp = (int(i) for i in np.unravel_index(workers.argmax(), workers.shape))
    sorts = zip(Sort, path.sort_s[index].tolist(), strict=True)
    return {
        "by_sort": {sort.label: seconds / length for sort, seconds in sorts},
        "by_kind": {kind: float(seconds[index]) / length for kind, seconds in path.kind_s.items()},
        "by_stage": {str(pp): s / length for pp, s in enumerate(path.stage_s[index].tolist())},
        "worker": [dp, pp, float(workers[pp, dp]) / length],
    }


def _slack(slack: Slack) -> dict[str, Any]:
    def extents(values: Mapping[Any, tuple[float, float]]) -> dict[str, dict[str, float]]:
        return {str(key): {"least": low, "median": mid} for key, (low, mid) in values.items()}

    return {
        "steps": slack.steps.tolist(),
        "by_kind": extents(slack.by_kind),
        "by_stage": extents(slack.by_stage),
        "by_worker": slack.least_s.tolist(),
        "near_workers": slack.near_workers,
    }


def path_lines(path: CriticalPath, width: int) -> list[Text]:
    """What the step consists of, and which worker it mostly waits for."""
    from rich.text import Text  # result.json needs none of it

    from paceline.report.layout import wrapped

    title = Text().append("critical path", style="bold")
    title.append(": what makes up the step", style="dim")
    lines = [title, *wrapped(kinds_text(path), width)]
    workers = path.n_dp * path.n_pp
    if workers > 1:
        text = leader_text(path)
        if path.slack is not None:
            text += f"; {near_text(path.slack, workers)}"
        lines += wrapped(text, width)
    return lines


def kinds_text(path: CriticalPath) -> str:
    """``backward-compute 67%, forward-compute 31%, between operations 2%``."""
    kinds = {kind: share for kind, share in path.by_kind.items() if kind != LAUNCH_DELAY}
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    named = [(kind, share) for kind, share in ranked[:_TOP_KINDS] if share >= _LEAST]
    delay = path.by_kind[LAUNCH_DELAY]
    rest = 1 - delay - sum(share for _, share in named)
    named += [("all else", rest)] if rest >= _LEAST else []
    return ", ".join(
        f"{name} {share:.0%}" for name, share in [*named, ("between operations", delay)]
    )


def leader_text(path: CriticalPath) -> str:
    """``worker dp 3, stage 1 has 62% of it, the most in 9 of 10 steps``."""
    leader = path.leading_worker
    dp, pp = leader.name
    steps = (
        f", the most in {leader.n_steps} of {len(path.steps)} steps" if len(path.steps) > 1 else ""
    )
    return f"worker dp {dp}, stage {pp} has {leader.share:.0%} of it{steps}"


def near_text(slack: Slack, workers: int) -> str:
    """``16 of 2,048 workers are on it or within 1% of the step``."""
    are = "is" if slack.near_workers == 1 else "are"
    return f"{slack.near_workers:,} of {workers:,} workers {are} on it or within 1% of the step"
