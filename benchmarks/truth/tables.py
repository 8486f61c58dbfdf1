"""The records of all cases as tables in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from truth.examine import Record

#: Gains that differ by less than this are equal, in shares of the step.
SAME = 0.005
#: A refused remedy is missed from this gain on.
MISSED = 0.02
BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


def spread(values: Sequence[float], scale: float = 100.0) -> str:
    """Median, 95% quantile and largest of absolute values, in percent."""
    if not len(values):
        return f"{'-':>6} {'-':>6} {'-':>6}"
    size = np.abs(np.array(values)) * scale
    return f"{np.median(size):6.1f} {np.quantile(size, 0.95):6.1f} {size.max():6.1f}"


def outcomes_of(records: Iterable[Record]) -> list[Record]:
    """What came of the remedies proposed, each with its case's id and tags."""
    return [
        {**row, "id": record["id"], "tags": record["tags"]}
        for record in records
        for row in record.get("outcomes", ())
    ]


def wrong_sign(row: Record) -> bool:
    """Whether a gain was promised and the step became longer, or the other way round."""
    promised, true = row["gain"], row["true_gain"]
    return bool(promised * true < 0 and abs(promised - true) > SAME)


def remedy_table(records: Sequence[Record], worst: int = 15) -> Iterator[str]:
    """Predictions against the changed job, by remedy."""
    rows = outcomes_of(records)
    applied = [row for row in rows if "skipped" not in row]
    yield (
        f"Remedies: {len(rows)} proposed on {len(records)} jobs, {len(applied)} applied. "
        "Step time in % (median, 95%, largest): as the stopwatch shows it; without launch delays."
    )
    yield (
        f"{'remedy':17}{'n':>4}{'skip':>5}  {'step error':^20}  {'undelayed':^20}  "
        f"{'gain error, points':^20}  {'sign':>4} {'in 90%':>6}"
    )
    by_remedy: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        by_remedy[row["remedy"]].append(row)
        by_remedy["all"].append(row)
    for name, own in sorted(by_remedy.items()):
        done = [row for row in own if "skipped" not in row]
        undelayed = [r["undelayed_error"] for r in done if r["undelayed_error"] is not None]
        inside = [r["interval"][0] <= r["true_gain"] <= r["interval"][1] for r in done]
        yield (
            f"{name:17}{len(own):4}{len(own) - len(done):5}  "
            f"{spread([r['step_error'] for r in done])}  {spread(undelayed)}  "
            f"{spread([r['gain_error'] for r in done])}  {sum(map(wrong_sign, done)):4} "
            f"{np.mean(inside) if inside else 0:6.0%}"
        )
    yield ""
    yield f"The {worst} worst gains:"
    for row in sorted(applied, key=lambda row: -abs(row["gain_error"]))[:worst]:
        yield (
            f"  {row['remedy']:17} promised {row['gain']:6.1%}, true {row['true_gain']:6.1%}, step "
            f"{row['step_time_s']:.3f} s, true {row['true_s']:.3f} s   {row['id']}"
        )
    skipped = Counter(
        (row["remedy"], row["skipped"].splitlines()[-1]) for row in rows if "skipped" in row
    )
    for (name, reason), count in skipped.most_common():
        yield f"  skipped {count}: {name}: {reason}"
    yield ""


def worst_by_remedy(records: Sequence[Record], n: int = 3) -> Iterator[str]:
    """The worst cases of each remedy."""
    by_remedy: dict[str, list[Record]] = defaultdict(list)
    for row in outcomes_of(records):
        if "skipped" not in row:
            by_remedy[row["remedy"]].append(row)
    yield f"The {n} worst of each remedy (promised, true gain):"
    for name, rows in sorted(by_remedy.items()):
        for row in sorted(rows, key=lambda row: -abs(row["gain_error"]))[:n]:
            yield f"  {name:17} {row['gain']:6.1%} {row['true_gain']:6.1%}   {row['id']}"
    yield ""


def missed_table(records: Sequence[Record]) -> Iterator[str]:
    """Remedies that were refused although the obvious change gains."""
    refused: Counter[str] = Counter()
    missed: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for record in records:
        for name, row in record.get("missed", {}).items():
            refused[name] += 1
            if row["gain"] >= MISSED:
                missed[name].append((row["gain"], row["reason"], record["id"]))
    yield f"Refused although an obvious change of the sort gains {MISSED:.0%} or more:"
    for name, count in sorted(refused.items()):
        gains = [gain for gain, _, _ in missed[name]]
        middle = f"median gain {np.median(gains):.1%}, most {max(gains):.1%}" if gains else ""
        yield f"  {name:17} {len(gains):3} of {count:3} refusals with a fault to answer  {middle}"
        reasons = Counter(_short(reason) for _, reason, _ in missed[name])
        for reason, times in reasons.most_common(2):
            example = next(
                i for _, r, i in sorted(missed[name], reverse=True) if _short(r) == reason
            )
            yield f"      {times:3} x {reason}   e.g. {example}"
    yield ""


def _short(reason: str) -> str:
    head = reason.split(":")[0] if len(reason) > 90 else reason
    return "".join("#" if c.isdigit() else c for c in head)[:90]


def cause_table(records: Sequence[Record]) -> Iterator[str]:
    """Causes injected: how many were named in the right place; what else was named."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    named_true: Counter[str] = Counter()
    named_all: Counter[str] = Counter()
    for record in records:
        findings = list(_findings(record))
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


def _findings(record: Record) -> Iterator[tuple[Record, Record]]:
    """Findings that name a cause, with their verdicts."""
    if "answer" in record:
        pairs = zip(record["answer"]["findings"], record["verdicts"], strict=True)
        yield from ((f, v) for f, v in pairs if f["cause"] != "unexplained")


def flapping_table(records: Sequence[Record]) -> Iterator[str]:
    """Collectives of one group that are slow in some steps."""
    yield "One DP group, slow in a share of the steps: true loss, the product's waste, best gain"
    for record in records:
        answer = record.get("answer")
        if answer is None:
            continue
        gains = [row for row in record["outcomes"] if row["remedy"] == "fix-nic"]
        gain = (
            f"{gains[0]['gain']:6.1%} true {gains[0].get('true_gain', np.nan):6.1%}"
            if gains
            else "-"
        )
        causes = ", ".join(f["cause"] for f in answer["findings"] if f["cause"] != "unexplained")
        tags = record["tags"]
        yield (
            f"  dp {tags['dp']:3} in {tags['share']:4.0%}: true {record['true_loss']:6.1%}  waste "
            f"{answer['waste']:6.1%}  fix-nic {gain:22} {causes}"
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
        named = [record for record in own if any(_findings(record))]
        word = "strong" if strong else "mild"
        yield (
            f"  {noise:13}{word:7} S {np.mean(s):.3f} {max(s):.3f}   "
            f"{sum(r['answer']['healthy'] for r in own)}/{len(own)}   "
            f"{sum(r['answer']['is_healthy'] for r in own)}/{len(own)}   {len(named)}"
        )
    jobs = [record for own in groups.values() for record in own]
    well = sum(record["answer"]["is_healthy"] for record in jobs)
    false = [(record, f) for record in jobs for f, _ in _findings(record)]
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
        first = [any(f["cause"] == c and v["first"] for f, v in _findings(r)) for r, c in wanted]
        whole = [
            any(f["cause"] == c and v["true"] and not v["lacking"] for f, v in _findings(r))
            for r, c in wanted
        ]
        false = [f["cause"] for r in own for f, v in _findings(r) if not v["true"]]
        calm = sum(r["answer"]["is_healthy"] for r in own)
        losses = " ".join(f"{r['true_loss']:.1%}" for r in own)
        yield (
            f"  {cause:22} {sum(first)} ({sum(whole)}) of {len(wanted)}, {calm} jobs called healthy, "
            f"false: {', '.join(false) or '-'}   loss {losses}"
        )
    yield ""


def clock_table(records: Sequence[Record]) -> Iterator[str]:
    """Late members, skewed and drifting clocks."""
    yield "Clocks: true loss; waste, discrepancy, replay error, offsets corrected (std); findings; gains"
    for record in records:
        answer = record.get("answer")
        if answer is None:
            continue
        findings = ", ".join(
            f["cause"] + ("" if v["true"] else " FALSE") for f, v in _findings(record)
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
    stated = [(f["confidence"], v["true"], f) for r in records for f, v in _findings(r)]
    yield f"Reliability of {len(stated)} findings that name a cause: confidence, findings, true"
    edges = [*BINS, np.inf]
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        own = [(true, f) for confidence, true, f in stated if low <= confidence < high]
        if not own:
            continue
        wrong = Counter(f["cause"] for true, f in own if not true)
        label = f"{low:.2f}" if low == 1 else f"{low:.2f} to {high:.2f}"
        false = ", ".join(f"{cause} {n}" for cause, n in wrong.most_common())
        yield f"  {label:13} {len(own):4}  {np.mean([true for true, _ in own]):6.1%}  false: {false}"
    yield ""


def crash_table(records: Sequence[Record]) -> Iterator[str]:
    """Cases that the product could not read."""
    for record in records:
        if "crash" in record:
            yield f"CRASH {record['id']}: {record['crash'].strip().splitlines()[-1]}"


TABLES: dict[str, tuple[Callable[[Sequence[Record]], Iterator[str]], ...]] = {
    "remedies": (remedy_table, worst_by_remedy, missed_table, cause_table),
    "flapping": (flapping_table,),
    "healthy": (healthy_table,),
    "weak": (weak_table,),
    "clocks": (clock_table,),
}


def all_tables(records: Sequence[Record]) -> Iterator[str]:
    """The tables of the parts that there are, then those over all of them."""
    for part, tables in TABLES.items():
        own = [record for record in records if record["part"] == part]
        for table in tables if own else ():
            yield from table(own)
    yield from reliability_table(records)
    yield from crash_table(records)
