"""The NCCL plugin with gloo: this module makes NCCL's calls to the plugin.

The real shared object runs: its ring buffers, its writer and its part of the pause. As in NCCL
(``hostStreamPlanTask``, docs/pause.md), a call is reported when queued, and its device times later,
on another clock. Layouts as in ``native/nccl_abi.h``.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Bits of event types (docs/nccl.md), and the state that reports a kernel's end.
_COLL, _P2P, _KERNEL = 1, 2, 6
_KERNEL_STOP: Final = 22

#: Room for the arguments of any event.
_UNION_BYTES: Final = 120


class _Coll(ctypes.Structure):
    _fields_ = (
        ("seq", ctypes.c_uint64),
        ("func", ctypes.c_char_p),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("root", ctypes.c_int),
        ("datatype", ctypes.c_char_p),
        ("channels", ctypes.c_uint8),
        ("warps", ctypes.c_uint8),
        ("algo", ctypes.c_char_p),
        ("proto", ctypes.c_char_p),
    )


class _P2p(ctypes.Structure):
    _fields_ = (
        ("func", ctypes.c_char_p),
        ("buffer", ctypes.c_void_p),
        ("datatype", ctypes.c_char_p),
        ("count", ctypes.c_size_t),
        ("peer", ctypes.c_int),
        ("channels", ctypes.c_uint8),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (("channel", ctypes.c_uint8), ("timer", ctypes.c_uint64))


class _Of(ctypes.Union):
    _fields_ = (
        ("coll", _Coll),
        ("p2p", _P2p),
        ("kernel", _Kernel),
        ("room", ctypes.c_uint8 * _UNION_BYTES),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("of", _Of),
    )


_INT, _POINTER, _TEXT = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
_HANDLE = ctypes.POINTER(_POINTER)


class _Profiler(ctypes.Structure):
    """``ncclProfiler_v6``."""

    _fields_ = (
        ("name", _TEXT),
        (
            "init",
            ctypes.CFUNCTYPE(
                *(_INT, _HANDLE, ctypes.c_uint64, ctypes.POINTER(_INT), _TEXT),
                *(_INT, _INT, _INT, _POINTER),
            ),
        ),
        ("start", ctypes.CFUNCTYPE(_INT, _POINTER, _HANDLE, ctypes.POINTER(_Event))),
        ("stop", ctypes.CFUNCTYPE(_INT, _POINTER)),
        ("state", ctypes.CFUNCTYPE(_INT, _POINTER, _INT, ctypes.POINTER(ctypes.c_uint64))),
        ("finalize", ctypes.CFUNCTYPE(_INT, _POINTER)),
    )


class Call:
    """A call reported to the plugin, and its begin.

    Args:
        owner: its communicator.
        handle: handle of its event.
    """

    def __init__(self, owner: Communicator, handle: int | None) -> None:
        self._owner, self._handle = owner, handle
        self._begun_ns = time.monotonic_ns()

    def queued(self) -> None:
        """Report the queueing; here the plugin may pause the rank."""
        self._owner.plugin.stop(self._handle)

    def done(self) -> None:
        """Report the end on the "device"."""
        self._owner.tell_kernel(self._handle, self._begun_ns, time.monotonic_ns())


class Communicator:
    """A process group, as NCCL would report it to the plugin.

    Args:
        library: the shared object.
        ranks: global numbers of the group's ranks.
        rank: global number of this process.
        name: name of the job; groups of equal name and ranks are one communicator.
    """

    def __init__(self, library: Path, ranks: Sequence[int], rank: int, name: str) -> None:
        self.plugin = _Profiler.in_dll(ctypes.CDLL(str(library)), "ncclProfiler_v6")
        self.ranks, self.rank = list(ranks), rank
        self._context, mask = _POINTER(), _INT()
        identity = zlib.crc32(repr((name, self.ranks)).encode()) | 1 << 32
        self.plugin.init(
            *(ctypes.byref(self._context), identity, ctypes.byref(mask), b"gloo", 1),
            *(len(self.ranks), self.ranks.index(rank), None),
        )
        self._seq: dict[bytes, int] = {}

    def collective(self, func: bytes, count: int) -> Call:
        """A collective of ``count`` float32; ``func`` is NCCL's name, a constant."""
        event = _Event(type=1 << _COLL, rank=self.rank)
        seq = self._seq[func] = self._seq.get(func, 0) + 1
        event.of.coll = _Coll(
            seq=seq, func=func, count=count, datatype=b"ncclFloat32", channels=1, algo=b"gloo",
            proto=b"tcp",
        )  # fmt: skip
        return Call(self, self._start(event))

    def transfer(self, func: bytes, count: int, peer: int) -> Call:
        """A send or recv of ``count`` float32; ``peer`` a global number."""
        event = _Event(type=1 << _P2P, rank=self.rank)
        event.of.p2p = _P2p(
            func=func, count=count, datatype=b"ncclFloat32", peer=self.ranks.index(peer), channels=1
        )
        return Call(self, self._start(event))

    def tell_kernel(self, parent: int | None, begun_ns: int, ended_ns: int) -> None:
        """Times on the device's own clock."""
        event = _Event(type=1 << _KERNEL, parent=parent, rank=self.rank)
        event.of.kernel = _Kernel(channel=0, timer=begun_ns)
        handle = self._start(event)
        if handle:
            ended = ctypes.c_uint64(ended_ns)
            self.plugin.state(handle, _KERNEL_STOP, ctypes.byref(ended))
            self.plugin.stop(handle)

    def close(self) -> None:
        """Destroy the communicator."""
        self.plugin.finalize(self._context)

    def _start(self, event: _Event) -> int | None:
        handle = _POINTER()
        self.plugin.start(self._context, ctypes.byref(handle), ctypes.byref(event))
        return handle.value
