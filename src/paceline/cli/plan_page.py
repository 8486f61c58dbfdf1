"""``paceline plan --serve``: the search's page with sliders, on this machine alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError
from paceline.extras import pip_install

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from paceline.model.cluster import Cluster
    from paceline.model.llm import LLM

#: Slider -> its name; each doubles or halves the command's value, up to this number of times.
DOUBLINGS = {"gpus": "GPUs", "seq_len": "tokens of a sample", "global_batch": "samples of a step"}
SPAN = 4
#: Dollars per GPU and hour, at most.
MAX_PRICE = 20.0

_HOSTS = ["127.0.0.1", "localhost"]


@dataclass(frozen=True)
class PlanPage:
    """The search before any slider is moved.

    Attributes:
        llm: the model.
        cluster: the machines.
        gpus: GPUs.
        global_batch: samples of a step.
        options: of ``plan.search.search``.
        top: plans to show.
    """

    llm: LLM
    cluster: Cluster
    gpus: int
    global_batch: int
    options: Mapping[str, Any]
    top: int

    @property
    def start(self) -> dict[str, int]:
        """Slider -> the value in the command."""
        return {"gpus": self.gpus, "seq_len": self.llm.seq_len, "global_batch": self.global_batch}

    def values(self, query: Mapping[str, str]) -> tuple[dict[str, int], float | None]:
        """Values of the sliders and the price that a request asks for, within their bounds."""
        values = {}
        for name, start in self.start.items():
            power = round(_number(query.get(name), 0.0, -SPAN, SPAN))
            values[name] = max(1, start << power if power >= 0 else start >> -power)
        price = self.cluster.price_per_gpu_hour
        if "price" in query:
            price = _number(query["price"], price or 0.0, 0.0, MAX_PRICE)
        return values, price or None

    def html(self, query: Mapping[str, str]) -> bytes:
        """The page of a search with these sliders; if no plan fits, the reason."""
        from paceline.plan.search import search
        from paceline.report import search_page as report

        values, price = self.values(query)
        seq_len = values["seq_len"]
        llm = replace(self.llm, seq_len=seq_len, max_positions=max(self.llm.max_positions, seq_len))
        cluster = self.cluster
        if price != cluster.price_per_gpu_hour:
            cluster = replace(cluster, price_per_gpu_hour=price, price_source="the slider")
        dollars, moved = price or 0.0, query.get("moved", "")
        controls = report.controls(self.start, values, DOUBLINGS, SPAN, dollars, MAX_PRICE, moved)
        try:
            result = search(llm, cluster, values["gpus"], values["global_batch"], **self.options)
        except PacelineError as error:
            return report.problem_page(str(error), controls)
        return report.page(result, self.top, controls)


def _number(text: str | None, default: float, low: float, high: float) -> float:
    """A number of a query within its bounds; ``default`` if it is not a number."""
    try:
        value = float(text or default)
    except ValueError:
        return default
    return min(max(value, low), high) if value == value else default


def create_app(page: PlanPage) -> Starlette:
    """The page as a web application; it answers only to this machine's names."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    lock = Lock()  # one search at a time, so that each has all cores

    def made(query: Mapping[str, str]) -> bytes:
        with lock:
            return page.html(query)

    async def answer(request: Request) -> HTMLResponse:
        content = await run_in_threadpool(made, dict(request.query_params))
        return HTMLResponse(content, headers={"Cache-Control": "no-store"})

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)
    return Starlette(routes=[Route("/", answer)], middleware=[hosts])


def serve(page: PlanPage, port: int) -> int:
    """Serve until Ctrl-C; 0 = a free port.

    Raises:
        PacelineError: the web extra is not installed, or the port is taken.
    """
    import socket

    try:
        import uvicorn
    except ImportError as error:
        raise PacelineError(
            f"--serve needs a web server ({error}); {pip_install('monitor')}"
        ) from None
    if not 0 <= port < 1 << 16:
        raise PacelineError(f"a port is a number from 0 to 65535, not {port}")
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # before the address is printed: nobody who opens it is refused
        except OSError as error:
            raise PacelineError(f"port {port}: {error.strerror}") from None
        print(f"plans on http://127.0.0.1:{listening.getsockname()[1]}/ (Ctrl-C ends it)")
        sys.stdout.flush()
        server = uvicorn.Server(uvicorn.Config(create_app(page), log_level="warning"))
        with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has stopped
            server.run(sockets=[listening])
    return 0
