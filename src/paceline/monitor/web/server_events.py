"""Server-sent events about changes, after which open pages refetch themselves."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from paceline.monitor.web.security import require

#: Age at which a stream ends and the browser reconnects, as a token may have expired.
LIFE_S = 600.0

#: Idle time before a comment is sent, so that proxies keep the connection.
BEAT_S = 15.0
#: Time until the browser reconnects after a broken connection.
_RETRY_MS = 2000


def routes(service: Any) -> list[Route]:
    """``/events``."""

    async def events(request: Request) -> StreamingResponse:
        principal = require(request, "read")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            _news(service.bus, principal.project), media_type="text/event-stream", headers=headers
        )

    return [Route("/events", events, methods=["GET"])]


async def _news(bus: Any, project: str) -> AsyncIterator[bytes]:
    subscription = bus.subscribe(project)
    end = time.monotonic() + LIFE_S
    try:
        yield f"retry: {_RETRY_MS}\n\n".encode()
        while not bus.closed and time.monotonic() < end:
            message = await subscription.next(BEAT_S)
            if message is None:
                yield b": still here\n\n"
                continue
            data = json.dumps({**message.data, "project": message.project})
            yield f"event: {message.kind}\ndata: {data}\n\n".encode()
    finally:
        subscription.close()
