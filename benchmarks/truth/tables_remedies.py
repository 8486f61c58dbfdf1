"""Tables of remedies: what was promised beside what came of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from truth.examine import Record

#: Gains that differ by less than this are equal, in shares of the step.
SAME = 0.005
#: A refused remedy is missed from this gain on.
MISSED = 0.02


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


#: Columns of the table by fault: a word, and the causes and second causes that it stands for.
FAULTS = {
    "worker": ("worker", "mild-worker", "two-workers", "replica", "worker-at-times", "gpipe"),
    "stage": ("last-stage",),
    "data": ("sequences", "lengths"),
    "gc": ("gc",),
    "link": ("link", "flapping-link"),
    "nic": ("nic", "flapping-nic", "port"),
    "delay": ("delay", "delay-backward"),
    "loading": ("loading",),
    "jitter": ("jitter",),
}


def fault_table(records: Sequence[Record]) -> Iterator[str]:
    """Where predictions err: each remedy on jobs that have a fault, whatever else they have."""
    yield "Gain errors in points (median/largest) on jobs with this fault, alone or beside another:"
    yield f"  {'remedy':17}" + "".join(f"{fault:>12}" for fault in FAULTS)
    rows = [row for row in outcomes_of(records) if "skipped" not in row]
    for name in sorted({row["remedy"] for row in rows}):
        cells = []
        for causes in FAULTS.values():
            own = [
                abs(row["gain_error"]) * 100
                for row in rows
                if row["remedy"] == name
                and {row["tags"]["cause"], row["tags"]["second"]} & set(causes)
            ]
            cells.append(f"{np.median(own):.1f}/{max(own):.1f}" if own else "-")
        yield f"  {name:17}" + "".join(f"{cell:>12}" for cell in cells)
    yield ""


def agreement_line(records: Sequence[Record]) -> Iterator[str]:
    """Two simulators, written apart, on the same jobs."""
    apart = [
        abs(record["answer"]["simulated_s"] / record["true_undelayed_s"] - 1)
        for record in records
        if "answer" in record and not record["answer"]["clocks_corrected"]
    ]
    yield (
        f"Step times without launch delays, simulated here and by the product, differ by at most "
        f"{max(apart):.1e} on {len(apart)} jobs."
    )
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


def waste_table(records: Sequence[Record]) -> Iterator[str]:
    """What stragglers cost: the product's waste beside the loss against the job without faults."""
    yield "Waste (1 - 1/S) against the true loss, by cause alone: points (median, 95%, most), bias"
    groups: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if "answer" in record and not record["tags"]["second"]:
            error = record["answer"]["waste"] - record["true_loss"]
            groups[record["tags"]["cause"]].append(error)
    for cause, errors in groups.items():
        yield f"  {cause:17} {len(errors):3}  {spread(errors)}  {100 * np.mean(errors):+6.1f}"
    yield ""


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
