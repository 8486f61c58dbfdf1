"""Tables of findings: what was named, what should not have been, and how sure it was said."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from truth.examine import Record

BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0, np.inf)


def cause_table(records: Sequence[Record]) -> Iterator[str]:
    """Causes injected: how many were named in the right place; what else was named."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    named_true: Counter[str] = Counter()
    named_all: Counter[str] = Counter()
    for record in records:
        findings = list(findings_of(record))
        for cause in record.get("truth", {}):
            if cause == "drift":
                continue
            asked[cause] += 1
            right[cause] += any(f["cause"] == cause and v["first"] for f, v in findings)
        for finding, verdict in findings:
            named_all[finding["cause"]] += 1
            named_true[finding["cause"]] += verdict["true"]
    yield "Causes: injected, named with the right first place; findings of it, all places true"
    for cause in sorted(asked | named_all):
        yield (
            f"  {cause:17} {right[cause]:4} of {asked[cause]:4}      {named_true[cause]:4} of "
            f"{named_all[cause]:4}"
        )
    yield ""


def findings_of(record: Record) -> Iterator[tuple[Record, Record]]:
    """Findings that name a cause, with their verdicts."""
    if "answer" in record:
        pairs = zip(record["answer"]["findings"], record["verdicts"], strict=True)
        yield from ((f, v) for f, v in pairs if f["cause"] != "unexplained")


def false_table(records: Sequence[Record]) -> Iterator[str]:
    """Findings whose cause or place is not among those injected."""
    rows = [(r, f, v) for r in records for f, v in findings_of(r) if not v["true"]]
    unsure = sum(bool(f.get("ambiguous")) for _, f, _ in rows)
    yield f"False findings: {len(rows)}, of which {unsure} say that they are ambiguous"
    for record, finding, verdict in rows:
        what = "further places" if verdict["first"] else "wrong"
        unsure_word = "ambiguous" if finding.get("ambiguous") else ""
        yield (
            f"  {finding['cause']:16} confidence {finding['confidence']:.2f} share "
            f"{finding['share'] or 0:5.2f} {what:14} {unsure_word:9} "
            f"truth {', '.join(record['truth'])}   {record['id']}"
        )
    yield ""


def healthy_table(records: Sequence[Record]) -> Iterator[str]:
    """What the product says of jobs without a fault."""
    yield "Healthy jobs: S (mean, most), S < 1.03, said to be healthy, with a named cause"
    groups: dict[tuple[str, bool], list[Record]] = defaultdict(list)
    for record in records:
        if "answer" in record:
            groups[record["tags"]["noise"], record["tags"]["strong"]].append(record)
    for (noise, strong), own in groups.items():
        s = [record["answer"]["slowdown"] for record in own]
        named = [record for record in own if any(findings_of(record))]
        word = "strong" if strong else "mild"
        yield (
            f"  {noise:13}{word:7} S {np.mean(s):.3f} {max(s):.3f}   "
            f"{sum(r['answer']['healthy'] for r in own)}/{len(own)}   "
            f"{sum(r['answer']['is_healthy'] for r in own)}/{len(own)}   {len(named)}"
        )
    jobs = [record for own in groups.values() for record in own]
    well = sum(record["answer"]["is_healthy"] for record in jobs)
    false = [(record, f) for record in jobs for f, _ in findings_of(record)]
    yield f"  {well} of {len(jobs)} said to be healthy; false findings: {len(false)}"
    for record, finding in false:
        where = str(dict(finding["where"]))[:50]
        yield (
            f"    {finding['cause']:16} confidence {finding['confidence']:.2f}  S "
            f"{record['answer']['slowdown']:.3f}  {where:50}  {record['id']}"
        )
    yield ""


def weak_table(records: Sequence[Record]) -> Iterator[str]:
    """Whether weak causes are named, with their place."""
    yield "Weak causes: jobs, named and placed (all of its places), false findings, true loss"
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if "answer" in record:
            groups[record["tags"]["cause"]].append(record)
    for cause, own in groups.items():
        wanted = [(r, c) for r in own for c in r["truth"] if c != "drift"]
        first = [any(f["cause"] == c and v["first"] for f, v in findings_of(r)) for r, c in wanted]
        whole = [
            any(f["cause"] == c and v["true"] and not v["lacking"] for f, v in findings_of(r))
            for r, c in wanted
        ]
        false = [f["cause"] for r in own for f, v in findings_of(r) if not v["true"]]
        calm = sum(r["answer"]["is_healthy"] for r in own)
        losses = " ".join(f"{r['true_loss']:.1%}" for r in own)
        yield (
            f"  {cause:22} {sum(first)} ({sum(whole)}) of {len(wanted)}, {calm} called healthy, "
            f"false: {', '.join(false) or '-'}   loss {losses}"
        )
    yield ""


def clock_table(records: Sequence[Record]) -> Iterator[str]:
    """Late members, skewed and drifting clocks."""
    yield "Clocks: true loss; waste, discrepancy, replay error, corrected by (std); findings; gains"
    for record in records:
        answer = record.get("answer")
        if answer is None:
            continue
        findings = ", ".join(
            f["cause"] + ("" if v["true"] else " FALSE") for f, v in findings_of(record)
        )
        gains = ", ".join(
            f"{row['remedy']} {row['gain']:.1%} true {row.get('true_gain', np.nan):.1%}"
            for row in record["outcomes"]
        )
        fixed = f"{answer['clock_std_s'] * 1e3:.1f} ms" if answer["clocks_corrected"] else "-"
        name = "/".join(record["id"].split("/")[2:])
        yield (
            f"  {name:34} loss {record['true_loss']:5.1%} waste {answer['waste']:5.1%} disc "
            f"{answer['discrepancy']:5.1%} replay {answer['replay_error']:5.1%} {fixed:8} "
            f"{findings or '-'}{'; ' + gains if gains else ''}"
        )
    yield ""


def reliability_table(records: Sequence[Record]) -> Iterator[str]:
    """Stated confidences against the share of findings that are true."""
    stated = [(f["confidence"], v["true"], f) for r in records for f, v in findings_of(r)]
    yield f"Reliability of {len(stated)} findings that name a cause: confidence, findings, true"
    for low, high in pairwise(BINS):
        own = [(true, f) for confidence, true, f in stated if low <= confidence < high]
        if not own:
            continue
        wrong = Counter(f["cause"] for true, f in own if not true)
        label = f"{low:.2f}" if low == 1 else f"{low:.2f} to {high:.2f}"
        false = ", ".join(f"{cause} {n}" for cause, n in wrong.most_common())
        share = np.mean([true for true, _ in own])
        yield f"  {label:13} {len(own):4}  {share:6.1%}  false: {false or '-'}"
    yield ""


def crash_table(records: Sequence[Record]) -> Iterator[str]:
    """Cases that the product could not read."""
    for record in records:
        if "crash" in record:
            yield f"CRASH {record['id']}: {record['crash'].strip().splitlines()[-1]}"
