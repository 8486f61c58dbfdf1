"""Timelines of xpu_timer: ``KernelTraces`` of hook.proto, encoded by hand."""

from pathlib import Path

#: A moment of 2026 in microseconds.
BEGIN_US = 1_780_000_000_000_000
NAMES = {0: "xpu_timer_mm_bmnk_1_2_3_4", 1: "xpu_timer_ncclAllReduce", 2: "xpu_timer_memcpy"}
#: Field of the debug data by the kind of the kernel.
_DEBUG_FIELD = {0: 7, 1: 9, 2: 10}


def varint(value: int) -> bytes:
    """A number of a message."""
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """(field, value) pairs as a message; zeros are left out, as proto3 does."""
    data = b""
    for field, value in fields:
        if isinstance(value, bytes):
            data += varint(field << 3 | 2) + varint(len(value)) + value
        elif value:
            data += varint(field << 3) + varint(value)
    return data


def kernel(
    kind: int, start_us: int, end_us: int, *, launch_us: int, on_host: bool = False, **debug: int
) -> tuple[int, bytes]:
    """A ``KernelTrace``; of collectives with ``comm_hash`` and ``seq``."""
    numbers = {"comm_hash": 3, "input_size_in_bytes": 4, "ranks": 6, "seq": 8, "send_recv_type": 10}
    of_kind = message(*((numbers[name], value) for name, value in debug.items()))
    trace = message(
        *((1, kind), (2, kind), (3, BEGIN_US + start_us), (4, end_us - start_us)),
        *((5, start_us - launch_us), (6, 1), (_DEBUG_FIELD[kind], of_kind), (11, int(on_host))),
    )
    return 1, trace


def garbage_collection(start_us: int, lasted_us: int) -> tuple[int, bytes]:
    """A ``HostTrace``."""
    return 2, message((1, BEGIN_US + start_us), (2, lasted_us), (3, b"GC"), (4, 1))


def write(
    folder: Path, *traces: tuple[int, bytes], rank: int = 1, called: int | None = None
) -> Path:
    """The timeline of a rank of four, and its names."""
    name = f"{rank if called is None else called:05}-00004.timeline"
    (folder / name).write_bytes(message(*traces, (3, 77), (4, rank)))
    names = [f"{code},{text}" for code, text in NAMES.items()]
    (folder / f"{name}.meta").write_text("\n".join([*names, "xpu_timer_host_trace,GC"]) + "\n")
    return folder / name


def one_rank(folder: Path, *, rank: int = 1) -> Path:
    """Computes 100 to 200, communicates 150 to 300, copies 390 to 400."""
    return write(
        folder,
        kernel(0, 100, 200, launch_us=90),
        kernel(1, 150, 300, launch_us=140, comm_hash=2**63 + 5, seq=3, ranks=4),
        kernel(2, 390, 400, launch_us=360),
        kernel(2, 0, 50, launch_us=0, on_host=True),
        garbage_collection(310, 40),
        rank=rank,
    )
