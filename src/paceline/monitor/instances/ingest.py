"""Writes step times into the shared log: many requests in one transaction."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from paceline.monitor.instances.membership import shard_of
from paceline.monitor.refusal import JobGone, Refusal
from paceline.monitor.step_files import Batch, encode
from paceline.monitor.store import step_log
from paceline.monitor.store.step_log import NewBlock

#: Most batches and bytes of one transaction.
_MOST, _MOST_BYTES = 1000, 16 << 20

#: Most bytes that wait while the database hangs: who sends them gives up after a while, and sends
#: them again.
_MOST_WAITING_BYTES = 256 << 20

_Waiting = tuple[NewBlock, Future[bool]]


class LogWriter:
    """Writes waiting batches in one transaction, while the next ones gather."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._count_lock = threading.Lock()
        self._n_bytes = 0  # of what waits
        self._thread = threading.Thread(target=self._run, name="paceline-log", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Write waiting batches, and stop."""
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join()

    def append(self, job_id: int, batch: Batch) -> Future[bool]:
        """Whether a batch is new, once it is in the log; raises errors of the database."""
        block = NewBlock(job_id, shard_of(job_id), batch.key(), encode(batch))
        future: Future[bool] = Future()
        if self._reserve(len(block.block)):
            self._queue.put((block, future))
        else:
            message = "too many step times wait for the database; try again later"
            future.set_exception(Refusal(503, message, retry_s=5))
        return future

    def _reserve(self, size: int) -> bool:
        """Count the bytes of a block, if there is room; one block alone always has some."""
        with self._count_lock:
            if self._n_bytes and self._n_bytes + size > _MOST_WAITING_BYTES:
                return False
            self._n_bytes += size
            return True

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            waiting, goes_on = self._gather()
            if waiting:
                self._write(waiting)
                with self._count_lock:
                    self._n_bytes -= sum(len(block.block) for block, _ in waiting)

    def _gather(self) -> tuple[list[_Waiting], bool]:
        waiting: list[_Waiting] = []
        size, item = 0, self._queue.get()
        while item is not None:
            waiting.append(item)
            size += len(item[0].block)
            if len(waiting) >= _MOST or size >= _MOST_BYTES:
                return waiting, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return waiting, True
        return waiting, False

    def _write(self, waiting: list[_Waiting]) -> None:
        try:
            new = step_log.append(self._engine, [block for block, _ in waiting])
        except IntegrityError:
            if len(waiting) == 1:
                waiting[0][1].set_exception(JobGone())
                return
            for one in waiting:
                self._write([one])
        except BaseException as error:
            for _, future in waiting:
                future.set_exception(error)
        else:
            for block, future in waiting:
                # Two equal batches in one transaction both count as new, for both are stored.
                future.set_result((block.job_id, block.key) in new)
