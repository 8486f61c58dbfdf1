"""uvicorn with time limits for slow clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.errors import MonitorError
from paceline.monitor.config import Config
from paceline.monitor.log import log
from paceline.monitor.web.limits import Connections

#: Time limit of a request's headers.
HEADERS_S = 10.0
#: Time limit for a client to read a part of a response.
UNREAD_S = 60.0
#: Most concurrent connections; beyond, the status is 503.
MAX_CONNECTIONS = 2000
#: Time for current requests when the service stops.
STOP_S = 10


class Impatient(H11Protocol):
    """Closes connections whose request does not arrive (slow loris) or whose client does not read.

    uvicorn itself waits forever. Excess connections of an address are closed, too.

    Attributes:
        open: shared counts of open connections per address.
    """

    open: Connections
    _counted: str | None = None  # address of the connection
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    # Like uvicorn, narrow the transport type that asyncio declares.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start the clock, or close it."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.open.enter(address):
            transport.abort()
            return
        self._counted = address
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once the headers have arrived; start it for the next request."""
        if self._counted is None:  # already closed; TLS may have read on
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks and uncount the connection."""
        self._stop_watch()
        if self._counted is not None:
            self.open.leave(self._counted)
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the write clock, as the client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self._end, "slow reader")

    def resume_writing(self) -> None:
        """Stop the write clock, as the client has read."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, soon even if the last response is unread."""
        super().timeout_keep_alive_handler()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def _watch(self) -> None:
        if not self._incomplete():
            self._stop_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self._end, "slow headers")

    def _incomplete(self) -> bool:
        """Whether a request is incomplete and no handler reads it."""
        answered = self.cycle is not None and self.cycle.response_complete
        state = self.conn.their_state
        return state is h11.IDLE or (state is h11.SEND_BODY and answered)

    def _stop_watch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self, reason: str) -> None:
        log(logging.WARNING, reason, client=self.client[0] if self.client else None)
        self.transport.abort()


class _Server(uvicorn.Server):
    """A server with callbacks after its start and before its stop."""

    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call ``ready``."""
        await super().startup(sockets)
        if self.started:
            await asyncio.to_thread(self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, for which uvicorn would wait."""
        self._stopping()
        await super().shutdown(sockets)


def listen(config: Config) -> socket.socket:
    """A listening socket at the configured address.

    Raises:
        MonitorError: the address is unavailable.
    """
    host, port = config.address()
    listener: socket.socket | None = None
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(info[0], info[1])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(info[4])
        listener.listen(512)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise MonitorError(
            f"cannot listen on {config.bind}: {error.strerror}; choose another --bind"
        ) from None
    return listener


def server_of(
    app: ASGIApp, config: Config, ready: Callable[[], None], stopping: Callable[[], None]
) -> uvicorn.Server:
    """The server of an application, not yet started.

    Args:
        app: the application.
        config: settings of the service.
        ready: called in a thread once connections are accepted.
        stopping: called when no more connections are accepted.

    Raises:
        MonitorError: the certificate or its key is invalid.
    """
    options: dict[str, Any] = {}
    if config.tls_cert:
        _check_certificate(config)
        options = {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}

    class Limited(Impatient):
        """Of this server."""

    settings = uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=STOP_S,
        **options,
    )
    # Proxies trusted to name the client: 127.0.0.1, or FORWARDED_ALLOW_IPS.
    proxies: Any = ProxyHeadersMiddleware(app, settings.forwarded_allow_ips).trusted_hosts  # type: ignore[arg-type]  # its own ASGI types
    Limited.open = Connections(config.connections_per_address, proxies)
    return _Server(settings, ready, stopping)


def _check_certificate(config: Config) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            config.tls_cert, config.tls_key
        )
    except OSError as error:
        reason = error.strerror or error
        raise MonitorError(
            f"the certificate {config.tls_cert} and key {config.tls_key} cannot be used: {reason}"
        ) from None
