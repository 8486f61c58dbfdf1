"""A study: the folder or bucket with the analyses of a fleet, and queries on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import FleetError
from paceline.fleet.columns import JOBS, SCHEMA, STEPS, Column, arrow_schema
from paceline.fleet.compact import JOBS_FOLDER, STEPS_FOLDER
from paceline.fleet.discover import STUDY_FILE
from paceline.fleet.store import BucketStore, FolderStore, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.fleet.figures import Figure

#: The file with the numbers of a study.
SUMMARY_FILE = "summary.json"


class Study:
    """The dataset of a fleet.

    Attributes:
        address: its folder or bucket.
        about: ``study.json``: schema, version, options, engine, counts.
    """

    def __init__(self, address: str | Path, by: Sequence[str] | None = None) -> None:
        """Open an existing study.

        Args:
            address: its folder or bucket.
            by: labels of the manifest by which the summary groups jobs; None: the study's own
                setting.

        Raises:
            FleetError: there is no study, or it has another version.
        """
        self.address = str(address)
        self.store = open_store(address)
        about = read_about(self.store)
        if about is None:
            raise FleetError(f"{address} is no study: it has no {STUDY_FILE}")
        if about.get("state") != "complete":
            raise FleetError(f"the study {address} is not complete; run the same command again")
        self.about: Mapping[str, Any] = about
        self._by = tuple(about.get("by", ()) if by is None else by)

    @cached_property
    def jobs(self) -> pa.Table:
        """A row per trace; the columns are :data:`paceline.fleet.columns.JOBS`."""
        return self._table(JOBS_FOLDER, JOBS)

    @cached_property
    def steps(self) -> pa.Table:
        """A row per step of every analysed job: :data:`paceline.fleet.columns.STEPS`."""
        return self._table(STEPS_FOLDER, STEPS)

    @cached_property
    def _summarised(self) -> tuple[dict[str, Figure], dict[str, Any]]:
        from paceline.fleet.summary import summarise

        return summarise(self.jobs, self.steps, self._by)

    @property
    def figures(self) -> Mapping[str, Figure]:
        """All figures by name: :data:`paceline.fleet.definitions.DEFINITIONS`."""
        return self._summarised[0]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of ``summary.json``; estimates are mappings."""
        return self._summarised[1]

    def figure(self, name: str) -> Figure:
        """One figure: its numbers with intervals, and its curves.

        Raises:
            FleetError: there is no figure of that name.
        """
        from paceline.fleet.figures import named

        return named(self.figures, name)

    def write_summary(self) -> None:
        """Write ``summary.json`` into the study."""
        from paceline.fleet.summary import as_json

        text = json.dumps(as_json(self.summary), indent=1, allow_nan=False)
        self.store.write(SUMMARY_FILE, f"{text}\n".encode())

    def _table(self, folder: str, columns: tuple[Column, ...]) -> pa.Table:
        import pyarrow as pa

        schema = arrow_schema(columns)
        tables = [_with_columns(part, schema) for part in self._parts(folder)]
        table = pa.concat_tables(tables) if tables else schema.empty_table()
        return table.unify_dictionaries()

    def _parts(self, folder: str) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for info in self.store.files(folder):
            try:
                yield pq.read_table(pa.BufferReader(self.store.read(info.name)))
            except (pa.ArrowException, OSError) as error:
                reason = " ".join(str(error).split())[:200]
                raise FleetError(f"{self.address}/{info.name} cannot be read: {reason}") from None


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with null in columns that its older version lacks."""
    import pyarrow as pa

    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


def read_about(store: FolderStore | BucketStore) -> dict[str, Any] | None:
    """The content of ``study.json``; None if there is none.

    Raises:
        FleetError: it is not the file of a study, or it has a later version.
    """
    try:
        about = json.loads(store.read(STUDY_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise FleetError(f"{store.address}/{STUDY_FILE} cannot be read: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("schema"), int):
        raise FleetError(f"{store.address}/{STUDY_FILE} is not of a study; choose another folder")
    if about["schema"] > SCHEMA:
        raise FleetError(
            f"{store.address} is a study of a later version of Paceline (schema "
            f"{about['schema']}, this one reads {SCHEMA}); choose another folder"
        )
    return about
