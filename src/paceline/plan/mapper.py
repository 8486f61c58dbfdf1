"""Map a function over many items: ``map`` here, or the same on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: (function, items) -> its results, in the order of the items. Items and function may travel.
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
