import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose.fit import fit_computes
from paceline.diagnose.sequences import (
    _least_squares,
    _robust,
    fit_sequence_cost,
    matching,
    microbatch_counts,
)
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.synth import BASE_S, SlowWorker, SynthSpec, draw_seqlens, synthesize
from paceline.trace import OpKind
from paceline.trace.seqlens import SeqLens

SPEC = SynthSpec(dp=4, pp=2, microbatches=8, steps=6, noise=0.0)
SECONDS = np.array([BASE_S[OpKind.FORWARD_COMPUTE], BASE_S[OpKind.BACKWARD_COMPUTE]])

JOBS = {
    "plain": {},
    "one stage": {"pp": 1},
    "chunks": {"vpp": 2},
    "replicas differ": {"microbatches": (8, 8, 6, 10)},
    "slow worker": {"slow_workers": (SlowWorker(1, 1, 1.5),)},
    "pauses": {"gc_pauses": (0.01, 0.3)},
}


def fitted(spec: SynthSpec, lens: SeqLens):
    measured = from_trace(synthesize(replace(spec, seqlens=lens)))
    fit = fit_computes(measured.durations)
    return fit_sequence_cost(measured.durations, fit, matching(lens, measured))


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("name", JOBS)
def test_the_coefficients_are_recovered(name, noise):
    spec = replace(SPEC, noise=noise, **JOBS[name])
    lens = draw_seqlens(spec.dp, spec.microbatches, spec.steps, 32_768)
    found = fitted(spec, lens)
    tokens, squares = lens.moments()
    n = lens.exists.sum()
    truth = np.outer(SECONDS, [0.3 * n / squares.sum(), 0.7 * n / tokens.sum(), 0.0])
    scale = np.array([squares.sum(), tokens.sum(), n]) / n  # to seconds of the average microbatch
    places = spec.pp * spec.vpp
    assert found.coefficients.shape == (2, places, 3)
    error = (found.coefficients - truth[:, None]) * scale / SECONDS[:, None, None]
    assert np.abs(error).max() < (0.03 if noise else 1e-3)
    assert found.r2.min() > (0.98 if noise else 0.99999)
    np.testing.assert_allclose(found.total, found.coefficients.sum(axis=(0, 1)))
    predicted = found.by_kind(lens)
    assert predicted.shape == (2, *lens.exists.shape)
    mean = predicted[:, lens.exists].mean(axis=1)
    np.testing.assert_allclose(mean, places * SECONDS, rtol=0.03)
    assert not predicted[:, ~lens.exists].any()


def test_full_microbatches_are_explained_by_tokens_and_not_by_a_constant():
    lens = draw_seqlens(4, 8, 6, 1000)
    short = 1000 - lens.moments()[0].astype(np.int64)  # fill each one up with a last sequence
    parts, ptr, end = [], [], 0
    for step, dp, microbatch in np.argwhere(lens.exists):
        part = lens.of(step, dp, microbatch).copy()
        part[-1] += short[step, dp, microbatch]
        parts.append(part)
        ptr.append((end, end := end + len(part)))
    full = SeqLens(lens.steps, np.array(ptr).reshape(lens.ptr.shape), np.concatenate(parts))
    found = fitted(replace(SPEC, noise=0.01), full)
    assert found.coefficients[..., 1].min() > 0
    assert not found.coefficients[..., 2].any()


def test_lengths_of_another_job_explain_nothing():
    lens = draw_seqlens(4, 8, 6, 32_768)
    measured = from_trace(synthesize(replace(SPEC, seqlens=lens, noise=0.02)))
    other = draw_seqlens(4, 8, 6, 32_768, seed=9)
    fit = fit_computes(measured.durations)
    found = fit_sequence_cost(measured.durations, fit, other)
    assert found.r2.max() < 0.2
    assert found.coefficients.min() >= 0


def test_evidence_is_plain():
    evidence = fitted(SPEC, draw_seqlens(4, 8, 6, 32_768)).evidence()
    assert evidence["r2"]["forward"] == pytest.approx(1.0)
    ratio = evidence["seconds_per_token"]["backward"] / evidence["seconds_per_token"]["forward"]
    assert ratio == pytest.approx(2.0)
    assert evidence["sequences"] > 4 * 8 * 6


def test_lengths_are_matched_with_the_trace():
    measured = from_trace(synthesize(replace(SPEC, microbatches=(8, 8, 6, 8))))
    assert microbatch_counts(measured.graph).tolist() == [8, 8, 6, 8]
    with pytest.raises(TraceError, match="dp rank 2: 8 microbatches with lengths, 6 in the trace"):
        matching(draw_seqlens(4, 8, 6, 100), measured)


@pytest.mark.parametrize(("gain", "constant"), [(9.9, False), (10.1, True)])
def test_a_constant_needs_strong_evidence(gain, constant):
    """Bayesian information of 100 rows: 100 ln(E / E') - ln 100 for one coefficient more.

    E' is what noise leaves beside squares, tokens and the constant; E what is left without the
    constant: the part of it too that is no sum of squares and tokens.
    """
    rng = np.random.default_rng(0)
    n, tokens = 100, rng.uniform(1, 2, 100)
    features = np.stack([rng.uniform(1, 2, n), tokens, np.ones(n)], axis=1)
    basis, _ = np.linalg.qr(features[:, :2])
    alone = np.ones(n) - basis @ (basis.T @ np.ones(n))
    whole, _ = np.linalg.qr(features)
    noise = rng.normal(size=n)
    noise -= whole @ (whole.T @ noise)
    ratio = math.exp((gain + math.log(n)) / n)
    size = math.sqrt((ratio - 1) * (noise @ noise) / (alone @ alone))
    seconds = features @ np.array([100.0, 200.0, size]) + noise
    coefficients = _least_squares(features, seconds)
    assert (coefficients[2] > 0) == constant
    if constant:
        assert coefficients == pytest.approx([100.0, 200.0, size])


@pytest.mark.parametrize("times", [0.5, 1.5, 3.0])
def test_rows_that_stand_out_do_not_bend_the_fit(times):
    """40 rows of 2 s per token; of noise +- 1% six robust deviations are 8.9%."""
    tokens = np.linspace(1, 2, 40)
    seconds = 2 * tokens * np.where(np.arange(40) % 2, 1.01, 0.99)
    seconds[[5, 17]] *= times
    seconds[30] = 2 * tokens[30] * 1.05  # within
    features = np.stack([tokens**2, tokens, np.ones(40)], axis=1)
    coefficients, inlier = _robust(features, seconds)
    assert np.flatnonzero(~inlier).tolist() == [5, 17]
    assert features @ coefficients == pytest.approx(2 * tokens, rel=0.005)


def test_the_share_of_the_variance_that_lengths_explain():
    """Without noise all of it, in both kinds; the sequences are counted."""
    lens = draw_seqlens(4, 8, 6, 32_768)
    fit = fitted(SPEC, lens)
    assert fit.r2 == pytest.approx([1.0, 1.0])
    assert fit.n_sequences == len(lens.lengths)
    assert fit.evidence()["sequences"] == len(lens.lengths)
    assert fit.evidence()["source"] == "what-if paper, 5.3 and Figure 9"


def test_models_that_would_need_negative_seconds_are_passed_over():
    """10 s per token and 5 s a microbatch: with squares in place of the constant these are < 0."""
    tokens = np.linspace(1, 2, 40)
    features = np.stack([tokens**2, tokens, np.ones(40)], axis=1)
    coefficients = _least_squares(features, 10 * tokens + 5)
    assert coefficients == pytest.approx([0, 10, 5], abs=1e-6)
    assert _least_squares(features, -tokens).tolist() == [0, 0, 0]
