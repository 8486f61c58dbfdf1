"""Templates, and the formats of numbers and times on the pages."""

from __future__ import annotations

import math
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from paceline import units
from paceline.monitor.alerts.judgement import what_lasts
from paceline.monitor.loss_range import (
    data_share,
    is_before,
    largest_lasting,
    largest_slowdown,
    loss_range,
)
from paceline.monitor.web.assets import static
from paceline.report.page.pack import safe_json
from paceline.results.words.names import CAUSES

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0


def render(request: Request, template: str, /, *, code: int = 200, **context: Any) -> HTMLResponse:
    """Render a page from a template that extends ``base.html``.

    Args:
        request: the request, whose ``state.principal`` determines the page's navigation.
        template: name of a file in ``templates``.
        code: HTTP status.
        context: at least ``title``; optionally ``active`` (Jobs, Fleet or Alerts), ``firing``
            (number of alerts) and ``news`` (kinds of messages that change the page).
    """
    principal = getattr(request.state, "principal", None)
    usual = {
        "active": "",
        "firing": 0,
        "news": "",
        "principal": principal,
        "now": time.time(),
        "nav_query": nav_query(principal),
    }
    html = _environment().get_template(template).render({**usual, **context})
    # External names may hold half a surrogate pair, which UTF-8 cannot encode.
    content = html.encode("utf-8", "replace")
    return HTMLResponse(content, code, headers={"Cache-Control": "no-store"})


def nav_query(principal: Any) -> str:
    """The query of links, which keeps a user of several projects in the current one."""
    stays = principal is not None and len(principal.projects) > 1 and principal.project != "*"
    return f"?project={principal.project}" if stays else ""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("paceline.monitor.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        static=static,
        version=_version(),
        span=lambda name, low, high: span(environment.filters[name], low, high),
        is_before=is_before,
        largest_lasting=largest_lasting,
        largest_slowdown=largest_slowdown,
        data_share=data_share,
        loss_range=loss_range,
        lasts_text=what_lasts,
    )
    environment.filters.update(
        ago=ago,
        cause=cause,
        data=lambda value: Markup(safe_json(value)),  # it escapes <, > and &
        factor=_or_dash(lambda value: f"{value:.2f}"),
        hours=_or_dash(units.gpu_hours),
        iso=lambda at: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        moment=moment,
        percent=_or_dash(units.percent),
        ratio=_or_dash(lambda value: f"{value:.3f}"),
        seconds=_or_dash(units.seconds),
        whole=_or_dash(lambda value: f"{value:,.0f}"),
    )
    return environment


def _or_dash(form: Any) -> Any:
    """The filter, with a dash for missing values."""

    def formed(value: float | None, *options: Any) -> str:
        return "–" if value is None or not math.isfinite(value) else str(form(value, *options))

    return formed


def span(form: Any, low: float | None, high: float | None) -> str:
    """``15.5% to 30.1%``; one number if both ends have the same text."""
    low_text = str(form(low))
    high_text = low_text if low is None or high is None else str(form(high))
    return low_text if high_text == low_text else f"{low_text} to {high_text}"


def cause(name: str | None) -> str:
    """A cause in words, as in the report; a dash for None."""
    return CAUSES.get(name, name.capitalize()) if name else "–"


def ago(at: float | None, now: float) -> str:
    """``3 min ago``."""
    if at is None:
        return "–"
    age_s = max(0.0, now - at)
    if age_s < _MINUTE_S:
        return "just now"
    for size_s, unit, below_s in ((_MINUTE_S, "min", _HOUR_S), (_HOUR_S, "h", 2 * _DAY_S)):
        if age_s < below_s:
            return f"{age_s / size_s:.0f} {unit} ago"
    return f"{age_s / _DAY_S:.0f} days ago"


def moment(at: float | None) -> str:
    """Date and time in UTC."""
    return "–" if at is None else units.moment(at)


def _version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:  # without installation
        return "(not installed)"
