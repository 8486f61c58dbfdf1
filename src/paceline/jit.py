"""Compile a hot loop with numba, only when the work is worth the import.

numba costs 0.3 s to import and some seconds to compile the first time; small jobs run the same
source interpreted instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

#: Exceptions of reading or writing a broken cache; the loops themselves raise none of these.
_CACHE_FAULTS = (OSError, EOFError, UnpicklingError, ValueError, AttributeError, ImportError)


def load_ahead() -> None:
    """Import numba in a thread, while the caller waits for a file."""
    threading.Thread(target=_load, name="numba", daemon=True).start()


def _load() -> None:
    import numba  # noqa: F401 (for its own sake)


@cache
def compiled(function: F) -> F:
    """``function`` compiled to machine code, without the GIL, cached on disk where possible."""
    import numba

    plain = numba.njit(nogil=True, error_model="numpy")(function)
    try:
        cached = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no writable place for the cache (read-only installation and home)
        return cast(F, plain)

    @wraps(function)
    def call(*args: Any) -> Any:
        try:
            return cached(*args)
        except _CACHE_FAULTS:  # a full disk or a torn file: raised before the loop runs
            return plain(*args)

    return cast(F, call)
