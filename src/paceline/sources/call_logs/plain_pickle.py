"""Pickles of plain data, read without the pickle module: no code in them can run.

A pickle is a program for a small machine. This machine has only the instructions that make numbers,
texts, lists, tuples and dicts. It refuses instructions that name, call or build anything else
(GLOBAL, REDUCE, BUILD, INST, ...). It also refuses those that could ask for memory beyond the size
of the file. The instructions: CPython's Lib/pickletools.py, protocols 2 to 5.

The result may still be nested very deep, or hold one list in very many places. So take the wanted
parts from it, and never walk, print or compare all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from paceline.errors import TraceError

_MARK = object()

#: Allowed instructions that make a constant; all others are refused.
_CONSTANTS: dict[int, Callable[[], Any]] = {
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
    ord("]"): list,
    ord("}"): dict,
    ord(")"): tuple,
}
_NUMBERS = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
#: Instructions for texts, and for whole numbers of any size -> the form of the length before them.
_TEXTS = {0x8C: "<B", ord("X"): "<I", 0x8D: "<Q"}
_WHOLE = {0x8A: "<B"}
_PUT, _GET = {ord("q"): "<B", ord("r"): "<I"}, {ord("h"): "<B", ord("j"): "<I"}
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
    # Exceptions from a list of instructions in the wrong order.
    except (IndexError, KeyError, TypeError, ValueError, struct.error, _Damaged) as error:
        raise TraceError(
            f"{where} is no pickle of plain data: at byte {machine.at:,} of {len(data):,} "
            f"{error if isinstance(error, _Damaged) else 'it is damaged or cut off'}"
        ) from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            if self.at >= len(self.data):
                raise _Damaged("it is cut off")
            op = self.data[self.at]
            if op == ord("."):
                (result,) = self._pop(len(self.stack))
                return result
            self.at += 1
            self._step(op)

    def _step(self, op: int) -> None:
        stack = self.stack
        if op in _TEXTS:
            # pickle keeps lone surrogates; here they become question marks.
            stack.append(self._take(self._number(_TEXTS[op])).decode("utf-8", errors="replace"))
        elif op in _NUMBERS:
            stack.append(self._number(_NUMBERS[op]))
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op]())
        elif op in _PUT:
            self.memo[self._number(_PUT[op])] = self._top()
        elif op == 0x94:  # MEMOIZE
            self.memo[len(self.memo)] = self._top()
        elif op in _GET:
            stack.append(self.memo[self._number(_GET[op])])
        elif op in _WHOLE:
            stack.append(
                int.from_bytes(self._take(self._number(_WHOLE[op])), "little", signed=True)
            )
        else:
            self._container(op)

    def _container(self, op: int) -> None:
        stack = self.stack
        if op == ord("("):
            stack.append(_MARK)
        elif op in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[op])))
        elif op == ord("t"):
            stack.append(tuple(self._to_mark()))
        elif op in (ord("a"), ord("e")):
            values = self._pop(1) if op == ord("a") else self._to_mark()
            self._below(list).extend(values)
        elif op in (ord("s"), ord("u")):
            values = self._pop(2) if op == ord("s") else self._to_mark()
            keys = values[::2]
            # Not tuples: to hash one made to exhaust would take for ever, or overflow the C stack.
            if not all(isinstance(key, str | int | float | None) for key in keys):
                raise _Damaged("a key is no text or number")
            self._below(dict).update(zip(keys, values[1::2], strict=True))
        elif op == 0x80:
            if not 2 <= self._number("<B") <= 5:
                raise _Damaged("is a protocol that is not known")
        elif op == 0x95:  # FRAME: only a hint for reading ahead
            self._number("<Q")
        elif op in _CODE:
            raise _Damaged(f"it would run code ({_CODE[op]}), which is never done; do not trust it")
        else:
            raise _Damaged(f"is an instruction (0x{op:02x}) that plain data has not")

    def _take(self, n_bytes: int) -> bytes:
        piece = self.data[self.at : self.at + n_bytes]
        if len(piece) < n_bytes:
            raise _Damaged("it is cut off")
        self.at += n_bytes
        return piece

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise _Damaged("it is damaged")
        return self.stack[-1]

    def _below(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise _Damaged("it is damaged")
        return self.stack[-1]

    def _pop(self, n: int) -> Sequence[Any]:
        values = [self.stack.pop() for _ in range(n)][::-1]
        if any(value is _MARK for value in values):
            raise _Damaged("it is damaged")
        return values

    def _to_mark(self) -> Sequence[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]
