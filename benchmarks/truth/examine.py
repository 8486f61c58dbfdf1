"""One case: what is true, what the product says, and both beside each other as plain values."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict
from typing import Any

from truth.apply import SkippedError, outcome_s
from truth.case import Case, injected, judge
from truth.missed import best_gain
from world.plant import World
from world.record import Run, rows_of, simulate, step_s, undelayed_s

Record = dict[str, Any]


def examine(case: Case) -> Record:
    """All that the tables need to know of a case.

    The product's failure is a result like any other: ``crash`` holds its traceback.
    """
    begin = time.perf_counter()
    job = simulate(case.world, case.setup)
    record: Record = {
        "id": case.id,
        "part": case.part,
        "tags": dict(case.tags),
        "faults": [f"{fault!r}" for fault in case.world.faults],
        "true_s": float(job.step_s.mean()),
        "true_undelayed_s": undelayed_s(job),
        "healthy_s": step_s(_without_faults(case.world), case.setup),
    }
    record["true_loss"] = 1 - record["healthy_s"] / record["true_s"]
    try:
        record |= _asked(case, job, record["true_s"])
    except Exception:  # whatever it is, the other cases go on
        record["crash"] = traceback.format_exc()
    record["seconds"] = time.perf_counter() - begin
    return record


def _without_faults(world: World) -> World:
    from dataclasses import replace

    return replace(world, faults=())


def _asked(case: Case, job: Run, now_s: float) -> Record:
    from truth import product

    world, setup = case.world, case.setup
    trace = product.trace_of(rows_of(world, job), world.dp, world.stages, setup.chunks)
    lengths = case.sequences()
    seqlens = product.seqlens_of(lengths, setup.microbatches) if lengths else None
    answer = product.ask(trace, setup.layers, seqlens)
    truth = injected(world, setup.layers)
    record: Record = {"answer": asdict(answer)}
    record["truth"] = {cause: sorted(places, key=str) for cause, places in truth.items()}
    record["verdicts"] = [asdict(judge(f, truth)) for f in answer.findings]
    record["outcomes"] = [_outcome(case, remedy, now_s) for remedy in answer.remedies]
    record["missed"] = {}
    if case.part == "remedies":
        for name, reason in answer.refused.items():
            gain = best_gain(case, name, now_s)
            if gain is not None:
                record["missed"][name] = {"gain": gain, "reason": reason}
    return record


def _outcome(case: Case, remedy: dict[str, Any], now_s: float) -> Record:
    """A remedy's promise beside what comes of it."""
    row: Record = {
        "remedy": remedy["remedy"],
        "text": remedy["text"],
        "gain": remedy["gain"],
        "interval": remedy["interval"],
        "step_time_s": remedy["step_time_s"],
    }
    try:
        after_s, undelayed = outcome_s(case, remedy)
    except SkippedError as skipped:
        return row | {"skipped": str(skipped)}
    except Exception:
        return row | {"skipped": traceback.format_exc()}
    return row | {
        "true_s": after_s,
        "true_undelayed_s": undelayed,
        "true_gain": 1 - after_s / now_s,
        "step_error": remedy["step_time_s"] / after_s - 1,
        "undelayed_error": remedy["step_time_s"] / undelayed - 1 if undelayed else None,
        "gain_error": remedy["gain"] - (1 - after_s / now_s),
    }
