"""The price of a GPU-hour as text: its source with the date, and the option for another."""

from __future__ import annotations

from paceline.model.cluster import Cluster
from paceline.model.cluster_presets import CLUSTER_PRESETS

_PRESET_SOURCES = frozenset(preset.price_source for preset in CLUSTER_PRESETS.values())


def price_text(cluster: Cluster) -> str:
    """``$6.88 per GPU-hour (AWS ..., 2025-06: ...; not checked since; ...)``."""
    price, source = cluster.price_per_gpu_hour, cluster.price_source
    if price is None:
        return f"no price of a GPU-hour is known for {cluster.name}: give --price (dollars)"
    text = f"${price:,.2f} per GPU-hour"
    if source in _PRESET_SOURCES:
        return f"{text} ({source}; not checked since; give yours with --price)"
    return f"{text} ({source})" if source else text
