"""Interface of a store: a folder, or a bucket with a prefix, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a store: its name, its bytes, and a text that changes with its content."""

    name: str
    size: int
    stamp: str


class Store(Protocol):
    """A folder, or a bucket with a prefix."""

    @property
    def address(self) -> str:
        """The address with which :func:`open_store` opens it again in any process."""

    def read(self, name: str) -> bytes:
        """The content; FileNotFoundError if it does not exist, OSError if it is unreadable."""

    def write(self, name: str, data: bytes) -> None:
        """Write the content atomically; OutputError if that fails."""

    def write_new(self, name: str, data: bytes) -> bool:
        """Write the content unless the name exists; returns whether it was written."""

    def delete(self, name: str) -> None:
        """Remove the file if it exists."""

    def exists(self, name: str) -> bool:
        """Whether the file exists."""

    def info(self, name: str) -> FileInfo:
        """Size and stamp of one file; FileNotFoundError if it does not exist."""

    def files(self, below: str = "") -> Iterator[FileInfo]:
        """All files in a folder and its subfolders, without hidden ones."""

    def local(self, name: str) -> Any:
        """A context with a path on this machine: the file itself, or a temporary copy."""


def whole_folder(name: str, files: Iterable[FileInfo]) -> FileInfo:
    """A folder as one file: its name, total size, and a stamp."""
    inside = sorted(files, key=lambda file: file.name)
    stamp = "|".join(f"{file.name}:{file.size}:{file.stamp}" for file in inside)
    return FileInfo(name, sum(file.size for file in inside), stamp)
