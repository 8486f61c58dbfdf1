"""The records of all cases as tables in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from truth.examine import Record
from truth.tables_findings import (
    cause_table,
    clock_table,
    crash_table,
    false_table,
    healthy_table,
    reliability_table,
    weak_table,
)
from truth.tables_remedies import (
    agreement_line,
    fault_table,
    flapping_table,
    missed_table,
    remedy_table,
    waste_table,
    worst_by_remedy,
)

TABLES: dict[str, tuple[Callable[[Sequence[Record]], Iterator[str]], ...]] = {
    "remedies": (
        agreement_line,
        remedy_table,
        fault_table,
        worst_by_remedy,
        missed_table,
        waste_table,
        cause_table,
        false_table,
    ),
    "flapping": (flapping_table,),
    "healthy": (healthy_table,),
    "weak": (weak_table, false_table),
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
