"""Request bodies: JSON or msgpack, decoded into their types, or refused."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from anyio import to_thread
from msgspec import Raw
from starlette.exceptions import HTTPException
from starlette.requests import Request

T = TypeVar("T")

#: Largest number of a row, limited by exact integers in JSON.
MAX_ID = 2**53
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

#: Most values of a body; a column packed as bytes counts as one.
MOST_VALUES = 2_000_000
#: Bodies unpacked and decoded at a time.
AT_A_TIME = 2
#: A plain body up to this size is decoded in the event loop's thread.
_SMALL_BYTES = 16 << 10
#: Largest form of the pages, bytes.
_MAX_FORM_BYTES = 8192


def bad(message: str, status: int = 400) -> HTTPException:
    """The error of an invalid body."""
    return HTTPException(status, message)


def checked_name(name: str) -> str:
    """A job's name.

    Raises:
        HTTPException: 400, the name has other characters.
    """
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise bad("a job's name has 1 to 100 of A-Z a-z 0-9 . _ -")
    return name


@dataclass(frozen=True, slots=True)
class Body:
    """An unpacked body, and its encoding.

    Attributes:
        content: its bytes.
        is_msgpack: whether it is msgpack instead of JSON.
    """

    content: bytes
    is_msgpack: bool

    def decode(self, kind: Any, field: str = "", content: Raw | None = None) -> Any:
        """The body, or its ``field``, as a ``kind``.

        Raises:
            HTTPException: 400, it has another type; the message names place and type.
        """
        try:
            return _decoder(kind, self.is_msgpack).decode(
                self.content if content is None else content
            )
        except RecursionError:
            problem = "it is nested too deeply"
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = str(error)[:200]
        raise bad(f"{field or 'the body'}: {problem}")

    def values(self, kind: Any, field: str, content: Raw, per_item: int) -> Any:
        """Many values, ``per_item`` of them in each item of the outer list.

        Raises:
            HTTPException: 400; 413, the msgpack has too many values (JSON was checked before).
        """
        if self.is_msgpack and _msgpack_length(bytes(content)) * per_item > MOST_VALUES:
            raise _too_many()
        return self.decode(kind, field, content)


@cache
def _decoder(kind: Any, is_msgpack: bool) -> Any:
    return msgspec.msgpack.Decoder(kind) if is_msgpack else msgspec.json.Decoder(kind)


def _msgpack_length(content: bytes) -> int:
    """Items of an array by its msgpack header (array format family); else 0."""
    if content[0] == 0xDD:
        return int.from_bytes(content[1:5], "big")
    return int.from_bytes(content[1:3], "big") if content[0] == 0xDC else 0


async def read_body(request: Request, most_bytes: int, parse: Callable[[Body], T]) -> T:
    """Result of ``parse`` for the body: JSON or msgpack, plain or gzip.

    Raises:
        HTTPException: 400, 413 or 415.
    """
    body = await request.body()
    packing = request.headers.get("content-encoding", "identity")
    if len(body) <= _SMALL_BYTES and packing == "identity":  # faster than in a thread
        return _parsed(body, request, most_bytes, parse)
    return await in_turn(request, _parsed, body, request, most_bytes, parse)


async def in_turn(request: Request, work: Callable[..., T], *args: Any) -> T:
    """Unpack or decode in a thread, a few at a time, as a body may grow to many times its size."""
    return await to_thread.run_sync(partial(work, *args), limiter=request.app.state.unpacking)


def _parsed(body: bytes, request: Request, most_bytes: int, parse: Callable[[Body], T]) -> T:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    content = unpacked(body, request, most_bytes)
    if kind.lower() in ("application/msgpack", "application/x-msgpack"):
        return parse(Body(content, is_msgpack=True))
    if kind.lower() not in ("application/json", ""):
        raise bad("Content-Type should be application/json or application/msgpack", 415)
    check_values(content)
    return parse(Body(content, is_msgpack=False))


def unpacked(body: bytes, request: Request, most_bytes: int) -> bytes:
    """A body after gzip decompression, which never exceeds the limit.

    Raises:
        HTTPException: 400, 413 or 415.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing == "identity":
        return body
    if packing != "gzip":
        raise bad("Content-Encoding should be gzip or none", 415)
    packed = zlib.decompressobj(wbits=31)
    try:
        content = packed.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise bad(f"the body is no gzip: {error}") from None
    if len(content) > most_bytes:
        raise bad(f"the unpacked body has more than {most_bytes:,} bytes", 413)
    if not packed.eof or packed.unused_data:
        raise bad("the gzip body is cut off, or something follows it")
    return content


def check_values(body: bytes) -> None:
    """Refuse JSON with too many small values, whose objects need ten times their bytes.

    Raises:
        HTTPException: 413.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MOST_VALUES:
        raise _too_many()


def _too_many() -> HTTPException:
    return bad(
        f"more than {MOST_VALUES:,} values; send less, or msgpack with columns as bytes", 413
    )


def whole_number(text: str | None) -> int:
    """A number in a path, a query or a form; for other text 0, which no row has."""
    number = int(text) if text and text.isascii() and text.isdecimal() and len(text) < 17 else 0
    return number if number <= MAX_ID else 0


def whole_parameter(request: Request, name: str, usual: int | None, most: int) -> int | None:
    """A whole number from the query, 0 to ``most``.

    Raises:
        HTTPException: 400, it is no such number.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise bad(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def finite(value: Any) -> Any:
    """The value as valid JSON, without nan and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form of the pages; bytes in their texts are UTF-8."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, "this form is short")
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=8))
    except ValueError:
        raise HTTPException(400, "this form is invalid") from None
