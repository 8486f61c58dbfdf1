"""The command line: which cases to run, in how many processes, and what to print."""

from __future__ import annotations

import argparse
import json
import os
import pprint
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from truth.case import Case
from truth.cases_others import clock_cases, healthy_cases, weak_cases
from truth.cases_remedies import faulty_cases, flapping_cases
from truth.examine import Record, examine
from truth.tables import all_tables

PARTS = {
    "remedies": (faulty_cases, flapping_cases),
    "healthy": (healthy_cases,),
    "weak": (weak_cases,),
    "clocks": (clock_cases,),
}


def cases_of(part: str, seed: int) -> list[Case]:
    """The cases of a part, or of all of them."""
    parts = PARTS if part == "all" else {part: PARTS[part]}
    return [case for makers in parts.values() for make in makers for case in make(seed)]


def case_named(name: str) -> Case:
    """The case with an id (its first word bears the seed)."""
    seed = int(name.split("/")[0].removeprefix("s"))
    for case in cases_of("all", seed):
        if case.id == name or case.id.startswith(name):
            return case
    raise SystemExit(f"there is no case {name}")


def run_all(cases: Sequence[Case], jobs: int) -> list[Record]:
    """Records of the cases, in their order; the large ones run first."""
    begin = time.perf_counter()
    records: dict[str, Record] = {}
    with ProcessPoolExecutor(jobs) as pool:
        queue = sorted(cases, key=lambda case: -case.size)
        for done in as_completed([pool.submit(examine, case) for case in queue]):
            record = done.result()
            records[record["id"]] = record
            took = f"{time.perf_counter() - begin:4.0f} s {record['seconds']:5.1f} s"
            print(f"{len(records):4}/{len(cases)} {took}  {record['id']}", file=sys.stderr)
    return [records[case.id] for case in cases]


def print_case(case: Case) -> None:
    """All that there is to know of a case."""
    print(case.id)
    pprint.pprint(case.world)
    pprint.pprint(case.setup)
    record = examine(case)
    if "crash" in record:
        print(record["crash"])
    pprint.pprint({key: value for key, value in record.items() if key != "crash"}, width=120)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge the product against physical jobs.")
    parser.add_argument("--seed", type=int, default=0, help="of all draws")
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--json", type=Path, help="write every record into this file")
    parser.add_argument("--case", help="one case by its id: print all of it")
    parser.add_argument("--dump", type=Path, help="with --case: write its trace (parquet)")
    args = parser.parse_args(argv)
    if args.case:
        case = case_named(args.case)
        if args.dump:
            dump(case, args.dump)
        print_case(case)
        return 0
    begin = time.perf_counter()
    cases = cases_of(args.part, args.seed)
    records = run_all(cases, args.jobs)
    print(f"{len(cases)} jobs, seed {args.seed}, {time.perf_counter() - begin:.0f} s\n")
    for line in all_tables(records):
        print(line)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1, default=str), encoding="utf-8")
    return 0


def dump(case: Case, path: Path) -> None:
    """Write the trace of a case."""
    from truth import product
    from world.record import rows_of, simulate

    rows = rows_of(case.world, simulate(case.world, case.setup))
    trace = product.trace_of(rows, case.world.dp, case.world.stages, case.setup.chunks)
    product.dump(trace, path)
    print(f"wrote {path}; layers {','.join(map(str, case.setup.layers))}", file=sys.stderr)
