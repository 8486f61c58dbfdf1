"""Compile a hot loop with numba, only when the work is worth the import.

numba costs 0.3 s to import and some seconds to compile the first time; small jobs run the same
source interpreted instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


@cache
def compiled(function: F) -> F:
    """``function`` compiled to machine code, without the GIL, cached on disk where possible."""
    import numba

    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:
        # numba finds no writable place for its cache (read-only installation and home).
        return cast(F, numba.njit(nogil=True, error_model="numpy")(function))
