"""The traces in a folder or bucket: all files that ``paceline.load`` reads, with companions.

A parquet file is one trace, and so is a recording's folder. Files of other tools form one trace if
they lie in one folder below the top (a file per rank or host). Otherwise each file is one trace.
``meta-X.yaml`` and ``hosts-X.csv`` belong to ``trace-X``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from paceline.errors import FleetError, TraceError
from paceline.fleet.store import FileInfo, FolderStore, Store, open_store
from paceline.fleet.trace_entry import TraceEntry

PARQUET = (".parquet", ".pq")
OF_OTHER_TOOLS = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".log")

#: The file that marks a folder as a study, which is not searched.
STUDY_FILE = "study.json"


def find_traces(address: str) -> tuple[list[TraceEntry], int]:
    """The traces of a folder or bucket in the order of their paths, and the number of other files.

    Raises:
        FleetError: it does not exist, cannot be read or has no trace.
    """
    store = open_store(address)
    base = str(address).rstrip("/")
    if isinstance(store, FolderStore) and not store.folder.is_dir():
        is_file = store.folder.exists()
        problem = "is a file: give its folder, or --manifest" if is_file else "does not exist"
        raise FleetError(f"{address} {problem}")
    files = _without_studies(store.files())
    if not files:
        raise FleetError(f"{address} has no files, so no traces")
    traces = _traces_of(store, files)
    if not traces:
        raise FleetError(
            f"{address} has {len(files):,} files, but none is a trace that `paceline analyze` reads"
        )
    infos = {info.name: info for info in files}
    entries = [_entry(base, trace, infos) for trace in sorted(traces, key=lambda t: t.name)]
    folders = tuple(f"{trace.name}/" for trace in traces if trace.name not in infos)
    used = {trace.name for trace in traces}
    used |= {_beside(name, infos, *kind) for name in used for kind in _COMPANIONS}
    unused = [name for name in infos if name not in used and not name.startswith(folders)]
    return entries, len(unused)


#: Beginning and end of a companion's name.
_COMPANIONS = (("meta-", ".yaml"), ("hosts-", ".csv"))


def _entry(base: str, trace: FileInfo, infos: Mapping[str, FileInfo]) -> TraceEntry:
    beside = [_beside(trace.name, infos, *kind) for kind in _COMPANIONS]
    stamps = [trace.stamp, *(infos[name].stamp if name else "" for name in beside)]
    meta, hosts = (f"{base}/{name}" if name else "" for name in beside)
    return TraceEntry(f"{base}/{trace.name}", trace.size, "+".join(stamps), meta, hosts)


def _beside(name: str, infos: Mapping[str, FileInfo], begin: str, end: str) -> str:
    """The companion of a trace; "" if there is none."""
    folder, slash, file = name.rpartition("/")
    stem = file.partition(".")[0]
    if not stem.startswith("trace-"):
        return ""
    companion = f"{folder}{slash}{begin}{stem.removeprefix('trace-')}{end}"
    return companion if companion in infos else ""


def _without_studies(files: Iterable[FileInfo]) -> list[FileInfo]:
    """Files outside folders that are studies, so that a study may lie among its traces."""
    listed = list(files)
    studies = {
        info.name.removesuffix(STUDY_FILE)
        for info in listed
        if info.name.rpartition("/")[2] == STUDY_FILE
    }
    return [info for info in listed if not any(info.name.startswith(name) for name in studies)]


def _traces_of(store: Store, files: list[FileInfo]) -> list[FileInfo]:
    traces = [info for info in files if info.name.endswith(PARQUET)]
    others = [info for info in files if info.name.endswith(OF_OTHER_TOOLS)]
    if not isinstance(store, FolderStore):  # its content is read only for its analysis
        return traces + others
    folders = _recordings(store, files)
    inside = tuple(f"{info.name}/" for info in folders)
    others = [info for info in others if not info.name.startswith(inside)] if inside else others
    return traces + folders + _of_other_tools(store, others)


def _recordings(store: FolderStore, files: list[FileInfo]) -> list[FileInfo]:
    from paceline.sources import recording

    names = sorted({info.name.rpartition("/")[0] for info in files} - {""})
    return [store.info(name) for name in names if recording.matches(store.folder / name)]


def _of_other_tools(store: FolderStore, files: list[FileInfo]) -> list[FileInfo]:
    """Files of ranks or hosts in one folder form one trace, except at the top."""
    from paceline.sources.importers import find_files

    by_folder = defaultdict(list)
    for info in files:
        try:
            find_files([store.folder / info.name])
        except TraceError:
            continue
        by_folder[info.name.rpartition("/")[0]].append(info)
    return [
        trace
        for folder, inside in by_folder.items()
        for trace in (inside if len(inside) == 1 or not folder else [store.info(folder)])
    ]
