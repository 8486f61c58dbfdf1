"""Streams like the labelled ones, from other seeds: what a detector is tuned on cannot judge it.

Noise, autocorrelation, spikes and episodes are of the sizes measured on the labelled streams of the
data (``fail-slow/dev_*.npz``), not copies of them; half of the ranks are slow at times, so that
delays have hundreds of episodes.
"""

from __future__ import annotations

import numpy as np

STEPS = 10_000


def streams(kind, seed, ranks=1000):
    """A mapping as of ``dev_{kind}.npz``: "comp", "comm" or "benign"."""
    random = np.random.default_rng([seed, len(kind)])
    comm = kind == "comm"
    cov = random.uniform(*((0.02, 0.08) if comm else (0.01, 0.03)), ranks)
    noise = random.standard_t(20 if comm else 14, (STEPS, ranks))
    noise /= noise.std()
    if comm:
        noise = _autocorrelated(noise, random)
    level = np.ones((STEPS, ranks))
    episodes = []
    for rank in range(ranks if kind == "benign" else ranks // 2):
        begin = 500 + int(random.exponential(2500))
        for _ in range(2):
            end = begin + int(np.clip(random.exponential(1100), 200, 3000))
            if end >= STEPS:
                break
            if kind == "benign":
                level[begin:end, rank] = random.uniform(1.03, 1.08)
            else:
                shape = random.uniform() if comm else 1.0
                factor = random.uniform(1.1, 1.8 if comm else 1.4)
                episodes.append((rank, *_rise(level[begin:end, rank], shape, factor, begin)))
            begin = end + 300 + int(random.exponential(2000))
    x = random.uniform(0.4, 0.6, ranks) * level * (1 + cov * noise)
    for rank, spikes in enumerate(random.poisson(8, ranks)):
        x[random.integers(0, STEPS, spikes), rank] *= random.uniform(1.3, 3, spikes)
    found = np.array(episodes, dtype=float).reshape(-1, 6)
    return {
        "x": x.T.astype(np.float32),
        "label_series": found[:, 0].astype(int),
        "labels": found[:, 1:4],
        "onset10": found[:, 4].astype(int),
        "kind": found[:, 5].astype(int),
    }


def _autocorrelated(noise, random):
    """Partly a slow wander, by another share and at another pace on every rank."""
    ranks = noise.shape[1]
    share, keep = random.uniform(0, 0.5, ranks), random.uniform(0.4, 0.95, ranks)
    wander = random.standard_normal(noise.shape)
    for step in range(1, len(wander)):
        wander[step] = keep * wander[step - 1] + np.sqrt(1 - keep**2) * wander[step]
    return np.sqrt(share) * wander + np.sqrt(1 - share) * noise


def _rise(level, shape, factor, begin):
    """Raise an episode's level; its onset, relief, factor, first step at 1.1x, and kind."""
    n = len(level)
    kind = 0
    if shape < 0.15:  # a ladder
        factor = 1.45 + (factor - 1.1) / 2
        rungs = 3 + begin % 2
        for i in range(rungs):
            level[i * n // rungs :] = 1 + (factor - 1) * (i + 1) / rungs
        kind = 1
    elif shape < 0.27:  # two steps, each below 10%
        factor = 1.145 + (factor - 1.1) / 20
        level[:] = (1 + factor) / 2
        level[n // 2 :] = factor
        kind = 2
    else:
        level[:] = factor
    return begin, begin + n, factor, begin + int(np.argmax(level >= 1.1)), kind
