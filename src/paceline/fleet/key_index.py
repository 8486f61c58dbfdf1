"""Stored keys of traces' contents, so that a continued study reads no trace again.

``keys/*.jsonl`` has a line per trace: its stamp key, which needs no reading, and its result key.
The files are a cache: without them each trace is read and hashed again.
"""

from __future__ import annotations

import json
import time
import uuid

from paceline.fleet.store import Store

FOLDER = "keys"

#: Seconds between two writes; a killed study hashes at most the traces since the last one again.
_EVERY_S = 20.0


class KeyIndex:
    """Stamp key -> result key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._written = time.monotonic()
        self._files = [info.name for info in store.files(FOLDER)]
        for name in self._files:
            self._load(name)

    def _load(self, name: str) -> None:
        for line in self._store.read(name).splitlines():
            try:
                stamp, key = json.loads(line)
            except (ValueError, TypeError):
                continue
            self._keys[str(stamp)] = str(key)

    def key(self, stamp: str) -> str:
        """The result key for a trace's stamp key; "" if the trace was never read."""
        return self._keys.get(stamp, "")

    def add(self, stamp: str, key: str) -> None:
        """Add a key."""
        self._new[stamp] = self._keys[stamp] = key
        if time.monotonic() - self._written > _EVERY_S:
            self.save()

    def save(self) -> None:
        """Write the new entries."""
        self._written = time.monotonic()
        if self._new:
            name = f"{FOLDER}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.jsonl"
            self._write(name, self._new)
            self._files.append(name)
            self._new = {}

    def merge(self) -> None:
        """Make one file of many."""
        self.save()
        if len(self._files) > 8:
            name = f"{FOLDER}/{time.time_ns():020d}-all.jsonl"
            self._write(name, self._keys)
            for old in self._files:
                self._store.delete(old)
            self._files = [name]

    def _write(self, name: str, keys: dict[str, str]) -> None:
        lines = (json.dumps(pair, separators=(",", ":")) for pair in keys.items())
        self._store.write(name, "\n".join(lines).encode() + b"\n")
