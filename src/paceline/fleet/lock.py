"""A lock, so that only one study at a time writes into a folder or bucket."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import FleetError, OutputError
from paceline.files import make_folder
from paceline.fleet.store import BucketStore, FolderStore

NAME = ".lock"

#: In a bucket the lock is an object, which its owner rewrites after this time.
_BEAT_S = 20.0
#: An older lock object is void.
_STALE_S = 120.0


@contextmanager
def locked(store: FolderStore | BucketStore) -> Iterator[None]:
    """Hold the study as long as the context lasts.

    Raises:
        FleetError: another process holds it.
        OutputError: the lock cannot be written.
    """
    context = _folder_lock(store) if isinstance(store, FolderStore) else _bucket_lock(store)
    with context:
        yield


@contextmanager
def _folder_lock(store: FolderStore) -> Iterator[None]:
    """The kernel's lock on a file, which ends with the process in any case."""
    make_folder(store.folder)
    path = store.folder / NAME
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{store.folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise FleetError(_refusal(store.address, file.read())) from None
        except OSError as error:
            raise OutputError(f"{path} cannot be locked: {error.strerror}") from None
        file.truncate(0)
        file.write(_owner("")[0])
        file.flush()
        yield


@contextmanager
def _bucket_lock(store: BucketStore) -> Iterator[None]:
    text, token = _owner(uuid.uuid4().hex)
    for _ in range(2):
        if store.write_new(NAME, text.encode()):
            break
        _remove_stale(store)
    if _token(_read(store)) != token:  # two writers, for the bucket cannot create exclusively
        raise FleetError(_refusal(store.address, _read(store)))
    done = threading.Event()
    beat = threading.Thread(target=_keep, args=(store, token, done), daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        store.delete(NAME)


def _keep(store: BucketStore, token: str, done: threading.Event) -> None:
    while not done.wait(_BEAT_S):
        store.write(NAME, _owner(token)[0].encode())


def _remove_stale(store: BucketStore) -> None:
    text = _read(store)
    try:
        age = time.time() - float(json.loads(text)["at"])
    except (ValueError, KeyError, TypeError):
        age = _STALE_S + 1 if text else 0.0
    if age > _STALE_S:
        store.delete(NAME)


def _read(store: BucketStore) -> str:
    try:
        return store.read(NAME).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _owner(token: str) -> tuple[str, str]:
    """(content of the lock, its token)."""
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "at": time.time(), "token": token}
    return json.dumps(owner), token


def _token(text: str) -> str:
    try:
        return str(json.loads(text)["token"])
    except (ValueError, KeyError, TypeError):
        return ""


def _refusal(address: str, text: str) -> str:
    try:
        owner = json.loads(text)
        who = f"process {int(owner['pid'])} on {str(owner['host'])[:80]}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return f"{address} is in use by {who}; wait for it, or choose another folder"
