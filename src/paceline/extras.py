"""Commands that install optional packages, for messages: from where this package came."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

_CHECKOUT = Path(__file__).parents[2]


def pip_install(extra: str = "") -> str:
    """The command that installs an extra of this very Paceline.

    Out of its checkout or its repository, as ``direct_url.json`` says (PEP 610); by its name where
    it came from an index.
    """
    return f"pip install {_requirement(_origin(), extra)}"


def _requirement(origin: str, extra: str) -> str:
    name = f"paceline[{extra}]" if extra else "paceline"
    if not origin:
        return f"'{name}'" if extra else name
    if "://" in origin:
        return f"'{name} @ {origin}'"
    return shlex.quote(f"{origin}[{extra}]" if extra else origin)


@cache
def _origin() -> str:
    """A folder or URL; "" = an index."""
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "src" / "paceline").is_dir():
        return str(_CHECKOUT)
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("paceline").read_text("direct_url.json")
        direct = json.loads(text or "{}")
        url = str(direct.get("url", ""))
        vcs = direct.get("vcs_info", {}).get("vcs")
    except (PackageNotFoundError, ValueError, AttributeError):
        return ""
    if url.startswith("file:") and not vcs:
        path = Path(unquote(urlsplit(url).path))
        return str(path) if path.exists() else ""
    return f"{vcs}+{url}" if vcs else url
