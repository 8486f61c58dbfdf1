"""Pickles of plain data, read without the pickle module: no code in them can run.

A pickle is a program for a small machine. This machine has only the instructions that make numbers,
texts, lists, tuples and dicts. It refuses instructions that name, call or build anything else
(GLOBAL, REDUCE, BUILD, INST, ...). It also refuses those that could ask for memory beyond the size
of the file. CPython's Lib/pickletools.py describes the instructions (protocols 2 to 5).

The result may still be nested very deeply, or hold one list in very many places. So take the wanted
parts from it, and never walk, print or compare all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.errors import TraceError

_STOP = ord(".")

#: Instructions that make a constant, which cannot be changed.
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_EMPTY = {ord("]"): list, ord("}"): dict}
_NUMBERS = {ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
#: Instructions for texts -> the form of the length before them.
_TEXTS = {0x8C: "<B", ord("X"): "<I", 0x8D: "<Q"}
_KEYS = {str, int, float, bool, type(None)}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_CODE = {
    ord("c"): "GLOBAL",
    0x93: "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}
_LONG = struct.Struct("<I")


class _Damaged(Exception):  # noqa: N818 (becomes a TraceError that says where)
    pass


def load(data: bytes, where: str) -> Any:
    """The plain data that a pickle holds.

    Raises:
        TraceError: it contains anything else, or is damaged.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    # Instructions in a wrong order raise these exceptions.
    except (IndexError, KeyError, TypeError, ValueError, struct.error, _Damaged) as error:
        raise TraceError(
            f"{where} is no pickle of plain data: at byte {machine.at:,} of {len(data):,} "
            f"{error if isinstance(error, _Damaged) else 'it is damaged or cut off'}"
        ) from None


class _Machine:
    """The machine. A dump has some 40 instructions per call, so each has its own, fast method."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        #: Values since the last mark, and those below each mark.
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, instructions = self.data, self._instructions()
        while (op := data[self.at]) != _STOP:
            self.at += 1
            instructions[op]()
        if self.below:
            raise _Damaged("it is damaged")
        (result,) = self.stack
        return result

    def _instructions(self) -> list[Callable[[], None]]:
        """[code] the method of an instruction."""
        of = {
            ord("K"): self._byte,
            ord("h"): self._get_short,
            ord("j"): self._get_long,
            ord("q"): self._put_short,
            ord("r"): self._put_long,
            0x94: self._memoize,
            0x8A: self._whole,
            ord("("): self._mark,
            ord("t"): self._tuple_to_mark,
            ord("a"): self._append,
            ord("e"): self._appends,
            ord("s"): self._set_item,
            ord("u"): self._set_items,
            0x80: self._protocol,
            0x95: self._frame,
        }
        of |= {op: partial(self._constant, value) for op, value in _CONSTANTS.items()}
        of |= {op: partial(self._empty, kind) for op, kind in _EMPTY.items()}
        of |= {op: partial(self._number, struct.Struct(form)) for op, form in _NUMBERS.items()}
        of |= {op: partial(self._text, struct.Struct(form)) for op, form in _TEXTS.items()}
        of |= {op: partial(self._tuple, n) for op, n in _TUPLES.items()}
        return [of.get(op) or partial(self._refused, op) for op in range(256)]

    def _constant(self, value: object) -> None:
        self.stack.append(value)

    def _empty(self, kind: type) -> None:
        self.stack.append(kind())

    def _byte(self) -> None:
        self.stack.append(self.data[self.at])
        self.at += 1

    def _number(self, form: struct.Struct) -> None:
        self.stack.append(self._unpack(form))

    def _text(self, form: struct.Struct) -> None:
        # pickle keeps lone surrogates; here they become question marks.
        self.stack.append(self._take(self._unpack(form)).decode("utf-8", errors="replace"))

    def _whole(self) -> None:
        n_bytes = self._take(1)[0]
        self.stack.append(int.from_bytes(self._take(n_bytes), "little", signed=True))

    def _get_short(self) -> None:
        self.stack.append(self.memo[self.data[self.at]])
        self.at += 1

    def _get_long(self) -> None:
        self.stack.append(self.memo[self._unpack(_LONG)])

    def _put_short(self) -> None:
        self.memo[self.data[self.at]] = self.stack[-1]
        self.at += 1

    def _put_long(self) -> None:
        self.memo[self._unpack(_LONG)] = self.stack[-1]

    def _memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _tuple(self, n: int) -> None:
        self.stack.append(tuple(self._pop(n)))

    def _tuple_to_mark(self) -> None:
        values = self._to_mark()
        self.stack.append(tuple(values))

    def _append(self) -> None:
        value = self.stack.pop()
        self._last(list).append(value)

    def _appends(self) -> None:
        values = self._to_mark()
        self._last(list).extend(values)

    def _set_item(self) -> None:
        self._update(self._pop(2))

    def _set_items(self) -> None:
        self._update(self._to_mark())

    def _update(self, values: list[Any]) -> None:
        keys = values[::2]
        # Not tuples: the hash of a malicious tuple can take forever, or overflow the C stack.
        if not _KEYS.issuperset(map(type, keys)):
            raise _Damaged("a key is no text or number")
        self._last(dict).update(zip(keys, values[1::2], strict=True))

    def _protocol(self) -> None:
        if not 2 <= self._take(1)[0] <= 5:
            raise _Damaged("is an unknown protocol")

    def _frame(self) -> None:
        self._take(8)  # only a hint for reading ahead

    def _refused(self, op: int) -> None:
        if op in _CODE:
            raise _Damaged(f"it would run code ({_CODE[op]}), which is never done; do not trust it")
        raise _Damaged(f"is an instruction (0x{op:02x}) that plain data does not have")

    def _take(self, n_bytes: int) -> bytes:
        piece = self.data[self.at : self.at + n_bytes]
        if len(piece) < n_bytes:
            raise _Damaged("it is cut off")
        self.at += n_bytes
        return piece

    def _unpack(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def _last(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise _Damaged("it is damaged")
        return self.stack[-1]

    def _pop(self, n: int) -> list[Any]:
        if len(self.stack) < n:
            raise _Damaged("it is damaged")
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def _to_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values
