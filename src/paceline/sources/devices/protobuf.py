"""Protobuf's wire format, as far as small files of known messages need it, without a package."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5


def fields(data: bytes | mmap) -> Iterator[tuple[int, int, bytes]]:
    """(field, value, content) of a message. A number has no content; bytes have the value -1.

    Raises:
        ValueError: it is no message, or cut off.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, at = _varint(data, at, end)
            yield tag >> 3, value, b""
            continue
        if kind == BYTES:
            length, at = _varint(data, at, end)
        elif kind in (FIXED_64, FIXED_32):
            length = 8 if kind == FIXED_64 else 4
        else:
            raise ValueError(f"byte {at:,} begins no field")
        if at + length > end:
            raise ValueError(f"byte {at:,} begins a field that is cut off")
        yield tag >> 3, -1, data[at : at + length]
        at += length


def _varint(data: bytes | mmap, at: int, end: int) -> tuple[int, int]:
    """The number at an index, and the index behind it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(f"byte {at:,} is in a number that does not end")
