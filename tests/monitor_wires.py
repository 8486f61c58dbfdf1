"""What lies between a monitor's parts, and can be broken: a TCP proxy, an S3 server, a disk."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from monitor_lab import free_port

WELL, REFUSES, HANGS = "well", "refuses", "hangs"

#: The folder in which `npm install s3rver` was run.
S3RVER = "PACELINE_S3RVER"


class Wire(threading.Thread):
    """A TCP proxy that can refuse, hang, and cut what is open."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.target, self.port, self.mood = target, free_port(), WELL
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._cut, self._over = False, False
        self._listener: socket.socket | None = None

    def cut(self) -> None:
        """Reset all connections."""
        self._cut = True

    def close(self) -> None:
        self._over = True
        self.join(30)

    def run(self) -> None:
        while not self._over:
            self._listen(self.mood != REFUSES)
            if self._cut or self.mood == REFUSES:
                self._drop_all()
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif self.mood == WELL:
                    self._pump(key.fileobj)
                else:
                    time.sleep(0.01)
        self._drop_all()
        self._listen(False)

    def _listen(self, wanted: bool) -> None:
        if wanted and self._listener is None:
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", self.port))
            self._listener.listen(128)
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif not wanted and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pump(self, one: socket.socket) -> None:
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(1 << 16)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        for each in (one, self._pairs.get(one)):
            if each is not None and self._pairs.pop(each, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                with contextlib.suppress(OSError):  # a reset, not a goodbye
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()

    def _drop_all(self) -> None:
        self._cut = False
        for one in list(self._pairs):
            self._drop(one)


class S3rver:
    """The S3 server "s3rver" (npm) in a process of its own, whose objects outlive it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen | None = None

    @staticmethod
    def program() -> Path | None:
        """None where it is not installed."""
        path = Path(os.environ.get(S3RVER, "")) / "node_modules" / "s3rver" / "bin" / "s3rver.js"
        return path if os.environ.get(S3RVER) and path.is_file() and shutil.which("node") else None

    def __enter__(self) -> S3rver:
        self.start()
        return self

    def start(self) -> None:
        command = ["node", str(self.program()), "-d", str(self.folder), "-p", str(self.port)]
        command += ["-a", "127.0.0.1", "-s", "--configure-bucket", "paceline"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 600
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5)
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(600)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def small_disk(folder: Path, mib: int = 64) -> Iterator[Path | None]:
    """A tmpfs at a folder, to be filled; None where nobody may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    made = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield folder if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def signal_tree(pid: int, number: int) -> None:
    """Send a signal to a process and its children."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        text = ""
    for each in (pid, *map(int, text.split())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)
