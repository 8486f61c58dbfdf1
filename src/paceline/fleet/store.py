"""Stores for traces and studies: folders, or buckets with an fsspec address.

Every name in a store is relative, with slashes. Files and objects are written atomically.
"""

from __future__ import annotations

from pathlib import Path

from paceline.fleet.bucket_store import BucketStore
from paceline.fleet.folder_store import FolderStore
from paceline.fleet.store_types import FileInfo, Store

__all__ = [
    "BucketStore",
    "FileInfo",
    "FolderStore",
    "Store",
    "is_remote",
    "open_store",
    "split_address",
]


def is_remote(address: str) -> bool:
    """Whether an address belongs to fsspec and is not a path."""
    return "://" in address


def open_store(address: str | Path) -> FolderStore | BucketStore:
    """The store of an address.

    Raises:
        FleetError: the kind of bucket is not installed, or the address is invalid.
    """
    text = str(address)
    if is_remote(text) and not text.startswith("file://"):
        return BucketStore(text)
    return FolderStore(Path(text.removeprefix("file://")))


def split_address(address: str) -> tuple[str, str]:
    """(folder or prefix, name in it) of a file's address."""
    folder, slash, name = address.rpartition("/")
    return (folder or slash or ".", name)
