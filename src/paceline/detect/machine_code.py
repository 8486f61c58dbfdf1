"""Which code judges a step: the source as it is, or machine code of it.

Machine code takes some seconds to make, once in a process, and longer on a busy machine. A command
that has all steps waits for it. A service with many jobs does not: it judges by the source until
the machine code is there.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from paceline.detect import levels

_lock = threading.Lock()
_is_begun = _is_ready = False  # of what a service waits for


def at_once(n_samples: int, *args: Any) -> int:
    """:func:`paceline.detect.levels.advance`, by machine code where that is worth its making.

    Args:
        n_samples: samples that the detector judges in all, as far as is known.
        args: arguments of the function.
    """
    if n_samples > levels.INTERPRETED_SAMPLES:
        return levels.compiled_advance()(*args)
    return levels.advance(*args)


def aside(n_samples: int, *args: Any) -> int:
    """The same; machine code is made in a thread of its own, then used for all detectors."""
    if _is_ready:
        return levels.compiled_advance()(*args)
    if n_samples > levels.INTERPRETED_SAMPLES:
        _begin(args)
    return levels.advance(*args)


def _begin(args: tuple[Any, ...]) -> None:
    global _is_begun
    with _lock:
        if _is_begun:
            return
        _is_begun = True
    copies = tuple(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)
    # No daemon: a process must not end within the compiler.
    threading.Thread(target=_make, args=(copies,), name="paceline-compiler", daemon=False).start()


def _make(args: tuple[Any, ...]) -> None:
    global _is_ready
    levels.compiled_advance()(*args)
    _is_ready = True
