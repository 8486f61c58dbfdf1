"""Samples become steps: closed in order, waited for, begun anew."""

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from paceline.detect.detector import Detector
from paceline.detect.refinement import Refinement
from paceline.errors import StateError
from paceline.monitor.snapshot import load_stream, save_stream
from paceline.monitor.step_stream import PATIENCE_S, Closed, Stream
from step_batches import batch, of_step


class TestStream:
    def closed(self, stream, *batches):
        found = (c for one in batches for c in stream.take(one))
        return [int(c.row["step"]) for c in found if isinstance(c, Closed)]

    def test_steps_are_closed_in_order_once_all_ranks_have_told(self):
        stream = Stream()
        assert self.closed(stream, batch(0, [1, 0], [0, 0], world=2)) == []
        assert self.closed(stream, batch(1, [1], [1], world=2)) == []
        assert self.closed(stream, batch(2, [0], [1], world=2)) == [0, 1]
        assert self.closed(stream, batch(3, [0, 1], [0, 1], world=2)) == []  # told already

    def test_a_rank_that_is_silent_is_waited_for_but_not_for_ever(self):
        stream = Stream()
        self.closed(stream, batch(0, [0, 0], [0, 1], world=2))
        assert self.closed(stream, batch(1, [1], [0], at=1001.0, world=2)) == []
        assert [int(c.row["samples"]) for c in stream.close_due(1001.0 + PATIENCE_S)] == [1]

    def test_a_new_start_begins_again_and_the_old_one_is_not_heard(self):
        stream = Stream()
        assert self.closed(stream, *(of_step(n, [1.0], source="one/0") for n in range(5))) == list(
            range(5)
        )
        assert self.closed(stream, of_step(2, [1.0], source="two/0", at=1010)) == [2]
        assert stream.start == 1
        assert self.closed(stream, of_step(9, [1.0], source="one/0", at=1011)) == []
        assert self.closed(stream, of_step(3, [1.0], source="two/0", at=1012)) == [3]

    @pytest.mark.parametrize("source", ["", "one/0"])
    def test_a_return_to_a_checkpoint_is_a_new_start(self, source):
        stream = Stream()
        times = [of_step(n, [1.0], source=source) for n in range(50)]
        assert self.closed(stream, *times) == list(range(50))
        again = [of_step(n, [1.0], source=source, at=2000.0 + n) for n in range(30, 45)]
        assert self.closed(stream, again[0], again[0], again[1]) == []  # repeated, it may be
        assert (stream.start, stream.seen_at) == (0, 2031.0)
        assert self.closed(stream, *again[2:]) == list(range(30, 45))
        assert (stream.start, stream.last_step) == (1, 44)

    def test_the_factor_is_that_of_all_steps_of_the_level(self):
        """The first steps after the onset are slower than the level."""
        stream, rng = Stream(), np.random.default_rng(1)
        assert stream.slow_factor is None
        refinement, detector = None, Detector(2)
        for n in range(190):
            level = 1.0 if n < 100 else 1.9 if n < 104 else 1.6
            times = level * (1 + 0.01 * rng.standard_normal(2))
            assert self.closed(stream, of_step(n, times.tolist())) == [n]
            refinement = refinement or Refinement(detector)
            refinement.take(detector.update(n, times))
            if n == 99:
                assert stream.slow_factor is None
            if n == 104:
                assert stream.slow_factor == pytest.approx(1.9, abs=0.05)
        assert stream.slow_factor == pytest.approx(1.6, abs=0.02)
        latest = {event.rank: event for event in refinement.events()}
        of_file = [event.refined.factor for event in latest.values()]  # `paceline detect`
        assert stream.slow_factor == pytest.approx(np.median(of_file), rel=1e-9)

    def test_the_factor_is_that_of_the_slowest_rank_if_only_some_are_slow(self):
        stream, rng = Stream(), np.random.default_rng(1)
        for n in range(190):
            noise = 1 + 0.01 * rng.standard_normal(3)
            times = np.array([1.0, 1.0, 1.0] if n < 100 else [1.0, 1.3, 1.7]) * noise
            self.closed(stream, of_step(n, times.tolist()))
        assert stream.slow_factor == pytest.approx(1.7, abs=0.02)

    def test_a_rank_that_is_late_is_no_new_start(self):
        stream = Stream()
        self.closed(stream, of_step(0, [1.0, 1.0]))
        for n in range(1, 40):
            list(stream.take(of_step(n, [1.0], ranks=[0], world=2)))
        list(stream.close_due(9000.0))
        late = [of_step(n, [1.0], ranks=[1], world=2, at=9000.0) for n in range(1, 40)]
        assert self.closed(stream, *late) == []
        assert (stream.start, stream.last_step) == (0, 39)

    def test_the_first_source_with_a_session_that_goes_back_is_a_new_start(self):
        stream = Stream()
        self.closed(stream, *(of_step(n, [1.0], source="s") for n in range(50)))
        assert self.closed(stream, of_step(1, [1.0], source="start-2/0", at=2000.0)) == [1]
        assert stream.start == 1

    def test_it_is_saved_and_goes_on_as_if_nothing_had_happened(self, tmp_path):
        rng = np.random.default_rng(3)
        times = 1 + 0.01 * rng.normal(size=(150, 4))
        times[80:120] *= 1.5
        whole, cut = Stream(), Stream()
        found = {whole: [], cut: []}
        for step, row in enumerate(times):
            if step % 7 == 3:
                save_stream(cut, tmp_path)
                found[loaded] = found.pop(cut) if (loaded := load_stream(tmp_path)) else []
                cut = loaded
            for stream in (whole, cut):
                for closed in stream.take(of_step(step, row)):
                    found[stream] += closed.events
        assert [(e.kind, e.step, e.rank) for e in found[whole]] == [
            (e.kind, e.step, e.rank) for e in found[cut]
        ]
        assert {e.kind for e in found[cut]} == {"onset", "relief"}

    @pytest.mark.parametrize("content", [b"", b"PK\3\4", b"x" * 100])
    def test_a_damaged_snapshot_does_not_fit(self, tmp_path, content):
        assert load_stream(tmp_path) is None
        (tmp_path / "detector.npz").write_bytes(content)
        with pytest.raises(StateError, match="cannot be read"):
            load_stream(tmp_path)

    def test_ranks_that_join_late_are_judged_with_the_others(self):
        stream = Stream()
        for step in range(60):
            list(stream.take(of_step(step, [1.0, 1.0], world=0, at=1000.0 + 10 * step)))
        for step in range(60, 120):
            list(stream.take(of_step(step, [1.0, 1.0, 1.0], world=0, at=1000.0 + 10 * step)))
        assert stream.ranks.tolist() == [0, 1, 2]
        assert stream.last_step == 119
        assert stream.detector.ranks == 3
