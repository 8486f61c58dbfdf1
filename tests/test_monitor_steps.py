"""Files of step times: on disk before they are acknowledged, once each."""

import errno
import os
import shutil
import threading

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from paceline.errors import OutputError
from paceline.monitor import step_files
from paceline.monitor.step_files import Batch, StepFile, StepFiles, decode, encode
from paceline.monitor.step_series import ROW, append_rows, read_rows, series_of
from step_batches import batch, same


class TestFile:
    def test_a_batch_comes_back_as_it_was(self, tmp_path):
        rng = np.random.default_rng(0)
        sent = [
            Batch(
                "a/ä",
                str(n),
                n / 7,
                rng.integers(0, 2**52, 50),
                rng.integers(0, 10**7, 50).astype("i4"),
                rng.normal(size=50).astype("f4"),
                n,
            )
            for n in range(3)
        ]
        assert all(same(decode(encode(one)), one) for one in sent)
        file = StepFile(tmp_path)
        ends = [file.append(one) for one in sent]
        assert ends == [one.end for one in file.read()]
        file.close()
        assert all(same(*pair) for pair in zip(StepFile(tmp_path).read(), sent, strict=True))

    def test_a_repeated_batch_counts_once_also_after_a_restart(self, tmp_path):
        file = StepFile(tmp_path)
        assert file.append(batch(1, [1], [0]))
        assert not file.append(batch(1, [1], [0]))
        assert file.append(batch(1, [1], [0], source="start/1"))
        file.close()
        file = StepFile(tmp_path)
        assert not file.append(batch(1, [1], [0]))
        assert len(list(file.read())) == 2

    def test_whatever_a_crash_leaves_of_the_last_batch_goes(self, tmp_path):
        whole, last = encode(batch(1, [1, 1], [0, 1])), encode(batch(2, [2, 2], [0, 1]))
        for cut in range(len(last)):
            folder = tmp_path / str(cut)
            folder.mkdir()
            path = folder / "00000000.steps"
            path.write_bytes(whole + last[:cut])
            file = StepFile(folder)
            assert [one.number for one in file.read()] == ["1"]
            assert file.append(batch(2, [2, 2], [0, 1]))
            assert path.read_bytes() == whole + last
            file.close()
            shutil.rmtree(folder)

    def test_a_flipped_bit_costs_its_block(self, tmp_path):
        blocks = [encode(batch(n, [n], [0])) for n in range(3)]
        for at in range(len(blocks[1])):
            damaged = bytearray(blocks[1])
            damaged[at] ^= 4
            (tmp_path / "00000000.steps").write_bytes(blocks[0] + bytes(damaged) + blocks[2])
            file = StepFile(tmp_path)
            assert [one.number for one in file.read()] == ["0", "2"]
            assert file.damaged_bytes == len(damaged)
            file.close()

    def test_old_segments_go_and_the_newest_stay(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 200)
        monkeypatch.setattr(step_files, "SEGMENTS", 3)
        file = StepFile(tmp_path)
        for n in range(50):
            file.append(batch(n, [n], [0]))
        kept = [int(one.number) for one in file.read()]
        assert len(file.segments()) == 3
        assert kept == list(range(kept[0], 50))
        assert kept[0] > 30

    def test_a_full_disk_takes_nothing_and_then_goes_on(self, tmp_path, monkeypatch):
        file = StepFile(tmp_path)
        file.append(batch(1, [1], [0]))
        real, parts = os.write, []

        def full(number, data):
            parts.append(1)
            if len(parts) % 2:
                return real(number, bytes(data[:10]))
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        for _ in range(3):
            with pytest.raises(OutputError, match="No space left"):
                file.append(batch(2, [2], [0]))
        monkeypatch.undo()
        assert file.append(batch(2, [2], [0]))
        file.close()
        assert [one.number for one in StepFile(tmp_path).read()] == ["1", "2"]

    def test_what_a_failed_fsync_may_have_lost_is_not_acknowledged(self, tmp_path, monkeypatch):
        file = StepFile(tmp_path)
        file.append(batch(1, [1], [0]))

        def fail(number):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError):
            file.append(batch(2, [2], [0]))
        monkeypatch.undo()
        assert [one.number for one in file.read()] == ["1"]
        assert file.append(batch(2, [2], [0]))
        assert [one.number for one in file.read()] == ["1", "2"]

    def test_threads_share_a_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 2000)
        monkeypatch.setattr(step_files, "SEGMENTS", 1000)
        file = StepFile(tmp_path)
        new = []

        def push(first):
            new.extend(file.append(batch(n, [n], [0])) for n in range(first, first + 40))

        threads = [threading.Thread(target=push, args=(20 * t,)) for t in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [int(one.number) for one in file.read()]
        assert sorted(numbers) == list(range(140))
        assert sorted(end for end in new if end) == [one.end for one in file.read()]

    def test_files_of_many_jobs_are_not_all_open(self, tmp_path):
        files = StepFiles(tmp_path, most_open=3)
        for job in range(10):
            assert files.append(job, batch(0, [job], [0]))
        assert len(files._open) == 3
        assert not files.append(2, batch(0, [2], [0]))
        assert sorted(files.job_ids()) == list(range(10))
        files.close()

    def test_only_old_segments_are_removed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 10)
        files = StepFiles(tmp_path)
        for n in range(4):
            files.append(1, batch(n, [n], [0]))
        for path in files.path(1).glob("*.steps"):
            os.utime(path, (50, 50))
        assert files.remove_older(1, 40) == 0
        assert files.remove_older(1, 60) > 0
        assert self.read(files) == []
        assert files.written_at(1) == 0.0
        numbers = [path.name for path in files.path(1).glob("*.steps")]
        assert files.remove_older(1, 1e12) == 0
        assert [path.name for path in files.path(1).glob("*.steps")] == numbers
        assert files.append(1, batch(9, [9], [0]))
        assert [one.number for one in self.read(files)] == ["9"]
        files.close()
        again = StepFiles(tmp_path)
        assert not again.append(1, batch(9, [9], [0]))
        again.close()

    def read(self, files):
        with files.of(1) as file:
            return list(file.read())


class TestSeries:
    def rows(self, steps, start=0):
        rows = np.zeros(len(steps), ROW)
        rows["step"], rows["start"], rows["max_s"], rows["at"] = steps, start, steps, steps
        return rows

    def test_a_torn_row_is_cut_off(self, tmp_path):
        append_rows(tmp_path, self.rows([1, 2]))
        with (tmp_path / "series.rows").open("ab") as file:
            file.write(b"half")
        append_rows(tmp_path, self.rows([3]))
        assert series_of(read_rows(tmp_path)).step.tolist() == [1, 2, 3]

    def test_few_points_show_the_slowest_and_the_newest(self, tmp_path):
        rows = self.rows(np.arange(10_000))
        rows["max_s"] = 1.0
        rows["max_s"][1234] = 9.0
        append_rows(tmp_path, rows)
        series = series_of(read_rows(tmp_path), points=50)
        assert len(series.step) == 50
        assert 1234 in series.step
        assert series.step[-1] == 9999
        assert series_of(read_rows(tmp_path), first=5, last=7).step.tolist() == [5, 6, 7]

    def test_all_starts_are_shown_and_steps_that_were_run_again_are_told(self, tmp_path):
        append_rows(tmp_path, self.rows([1, 2, 3, 4, 5]))
        append_rows(tmp_path, self.rows([4, 5, 6], start=1))
        append_rows(tmp_path, self.rows([3, 4], start=2))
        series = series_of(read_rows(tmp_path))
        assert series.step.tolist() == [1, 2, 3, 4, 5, 4, 5, 6, 3, 4]
        assert series.start.tolist() == [0] * 5 + [1] * 3 + [2] * 2
        assert series.lost.tolist() == [False, False, *[True] * 6, False, False]
        assert series_of(read_rows(tmp_path), first=5).start.tolist() == [0, 1, 1]
        assert series_of(read_rows(tmp_path), first=9).step.tolist() == []
