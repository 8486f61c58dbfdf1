"""uvicorn, with time limits for clients that never finish what they ask."""

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

#: Time in which the headers of a request have to arrive.
HEADERS_S = 10.0
#: Time in which a client has to read some of an answer.
UNREAD_S = 60.0
#: Connections at a time; beyond, the answer is 503.
MAX_CONNECTIONS = 2000
#: Time for the present work once the service is told to stop.
STOP_S = 10


class Impatient(H11Protocol):
    """Ends connections whose request does not arrive (slow loris), or whose client does not read.

    uvicorn waits for ever. It also ends those that are too many of one address.

    Attributes:
        open: counts the connections of each address; those of one server share it.
    """

    open: Connections
    _counted: str | None = None  # the address under which it is
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    # uvicorn narrows the transport that asyncio declares, and so do we.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it and start the clock, or end it."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self.open.enter(address):
            transport.abort()
            return
        self._counted = address
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once the headers are there; start it for a next request."""
        if self._counted is None:  # ended already: TLS may have read on
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks and the connection."""
        self._stop_watch()
        if self._counted is not None:
            self.open.leave(self._counted)
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read: start another clock."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self._end, "slow reader")

    def resume_writing(self) -> None:
        """It read."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked: end, soon even if the last answer is not read."""
        super().timeout_keep_alive_handler()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def _watch(self) -> None:
        if not self._incomplete():
            self._stop_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self._end, "slow headers")

    def _incomplete(self) -> bool:
        """Whether more of a request has to come that no handler reads."""
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
    """Calls back once it accepts connections, and when it is about to stop."""

    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        if self.started:
            await asyncio.to_thread(self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams of news, for which uvicorn would wait."""
        self._stopping()
        await super().shutdown(sockets)


def listen(config: Config) -> socket.socket:
    """A listening socket at the settings' address.

    Raises:
        MonitorError: it cannot be had.
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
    """The server of an application, not yet running.

    Args:
        app: the application.
        config: its settings.
        ready: called, in a thread, once connections are accepted.
        stopping: called when no more are.

    Raises:
        MonitorError: the certificate or its key is none.
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
    # Proxies that may name the caller: 127.0.0.1, or FORWARDED_ALLOW_IPS.
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
