"""Map a function over many items, in this process or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: (function, items) -> results in the order of the items. Function and items may be sent to other
#: machines.
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
