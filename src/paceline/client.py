"""A client of the monitor's HTTP API, of the standard library only.

    from paceline.client import Client

    client = Client("http://host:8765", token)
    session = client.push_trace("job-17", "trace.parquet", {"job": {"dp_size": 8, "pp_size": 4}})
    print(client.wait(session)["headline"])

Pushed data is on the service's disk when a call returns; a call that was cut off may be made
again and counts once. ``docs/api.md`` describes the API.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from paceline.errors import MonitorError

#: Bytes of a trace sent in one request.
CHUNK_BYTES = 8 << 20
#: First and longest pause before a request is made again.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 15.0
#: Answers after which the same request may succeed later.
_LATER = (429, 502, 503, 504, 507)
#: Seconds between two looks at a session that is waited for.
_LOOK_S = 0.3


class Refused(MonitorError):  # noqa: N818 (an answer)
    """The service answered with an error.

    Attributes:
        status: of HTTP.
        body: of the answer.
    """

    def __init__(self, status: int, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status, self.body = status, body


class Client:
    """Talks to one service.

    Args:
        url: of the service, http://host:8765.
        token: "" = that of the environment's PACELINE_TOKEN.
        project: where the token may write to several.
        patience_s: seconds for which a request is repeated while the service is away or busy.
        timeout_s: of one request.
        on_wait: told why, each time that a request begins to be made again.

    Raises:
        MonitorError: from all calls: the URL is none, the service is away for longer than
            ``patience_s``, or refuses (:class:`Refused`).
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        project: str = "",
        patience_s: float = 120.0,
        timeout_s: float = 60.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise MonitorError(f"{url!r} is no address of a monitor; give http://host:8765")
        self.url = (
            f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}"
        )
        self._token = (token or os.environ.get("PACELINE_TOKEN", "")).strip()
        if any(not "!" <= c <= "~" for c in self._token):
            raise MonitorError("the token has characters that no token has; copy it again")
        self._project = project
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._on_wait = on_wait or (lambda reason: None)
        self._opener = urllib.request.build_opener(NoRedirect)

    @property
    def token(self) -> str:
        """The token that it shows."""
        return self._token

    def register(
        self,
        name: str,
        *,
        gpus: int | None = None,
        degrees: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make the job known, or more of it."""
        body = {"name": name, "gpus": gpus, "degrees": degrees or {}, "labels": labels or {}}
        return self._json("POST", "/api/v1/jobs", body)

    def push_trace(self, name: str, path: str | Path, meta: Mapping[str, Any] | None = None) -> int:
        """Upload a trace, from where an earlier upload of it stopped; returns its session.

        Args:
            name: the job's.
            path: a parquet file.
            meta: ``job`` (degrees of parallelism), ``hosts`` (rank -> [host, gpu]).
        """
        path = Path(path)
        size, sha256 = _digest(path)
        begin = {"sha256": sha256, "size": size, "file_name": path.name, "meta": meta or {}}
        until = time.monotonic() + self._patience_s
        while True:
            answer = self._json("POST", f"/api/v1/jobs/{_quote(name)}/uploads", begin)
            if "session" in answer:
                return int(answer["session"])
            try:
                self._send(path, answer["upload"], int(answer["offset"]), size)
                finish = f"/api/v1/uploads/{answer['upload']}/finish"
                return int(self._json("POST", finish, {})["session"])
            except Refused as refused:
                # The upload stands elsewhere than we think, or is gone: ask again.
                if refused.status not in (404, 409) or time.monotonic() > until:
                    raise
                time.sleep(_FIRST_PAUSE_S)

    def _send(self, path: Path, upload: str, offset: int, size: int) -> None:
        with path.open("rb") as file:
            while offset < size:
                file.seek(offset)
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    raise MonitorError(
                        f"{path} has become shorter while it was sent; push it again"
                    )
                where = f"/api/v1/uploads/{upload}?offset={offset}"
                answer = self._json("PUT", where, chunk)
                offset = int(answer["offset"])

    def push_steps(
        self,
        name: str,
        steps: Sequence[int],
        ranks: Sequence[int],
        durations_s: Sequence[float],
        *,
        source: str = "",
        batch: str | int = "",
        world: int = 0,
        workload: Mapping[str, Mapping[int, float]] | None = None,
    ) -> dict[str, Any]:
        """Send step times, columns of equal length.

        Args:
            name: the job's.
            steps: [sample] step numbers.
            ranks: [sample] ranks.
            durations_s: [sample] seconds.
            source: who sends; "start/rank" where the start of the job has a name.
            batch: unique within the source; "" = a digest of the samples.
            world: ranks of the job, where it is known.
            workload: tokens, samples, batch, sequence_length, window or flops -> step -> what the
                step has to do by plan.
        """
        columns = {"steps": list(steps), "ranks": list(ranks), "durations_s": list(durations_s)}
        if batch == "":
            batch = hashlib.blake2b(json.dumps(columns).encode(), digest_size=12).hexdigest()
        body = {"source": source, "batch": batch, "world": world, **columns}
        if workload:
            body["workload"] = {name: list(of.items()) for name, of in workload.items()}
        return self._json("POST", f"/api/v1/jobs/{_quote(name)}/steps", body)

    def push_batches(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send step times of several jobs in one request; those that have to wait again.

        Args:
            batches: up to 1,000 of ``job``, ``source``, ``batch``, ``steps``, ``ranks``,
                ``durations_s`` and, where it is known, ``world``.

        Returns:
            for each ``accepted`` and ``repeated``, or ``error`` and ``status``.
        """
        answers: dict[int, dict[str, Any]] = {}
        left = list(range(len(batches)))
        until = time.monotonic() + self._patience_s
        while left:
            body = {"batches": [dict(batches[n]) for n in left]}
            told = self._json("POST", "/api/v1/steps", body)["batches"]
            answers |= dict(zip(left, told, strict=True))
            left = [n for n in left if answers[n].get("status") in _LATER]
            if left and time.monotonic() > until:
                break
            time.sleep(_FIRST_PAUSE_S if left else 0.0)
        return [answers[n] for n in range(len(batches))]

    def push_event(
        self, name: str, kind: str, step: int, text: str, *, at: float, ranks: Sequence[int] = ()
    ) -> int:
        """Tell of a pause of a job; returns the event's number. Told again it is the same.

        Args:
            name: the job's.
            kind: "paused", "not-paused", "validated" or "not-validated".
            step: the job's newest step then.
            text: what came of it.
            at: when, seconds since 1970.
            ranks: global ranks that it is about.
        """
        body = {"kind": kind, "step": step, "at": at, "text": text[:1000], "ranks": list(ranks)}
        return int(self._json("POST", f"/api/v1/jobs/{_quote(name)}/events", body)["id"])

    def end(self, name: str) -> None:
        """The job is over."""
        self._json("POST", f"/api/v1/jobs/{_quote(name)}/end", {})

    def jobs(self) -> Iterator[dict[str, Any]]:
        """All jobs that the token may see."""
        return self._pages("/api/v1/jobs", "jobs")

    def job(self, name: str) -> dict[str, Any]:
        """The service's record of a job."""
        return self._json("GET", f"/api/v1/jobs/{_quote(name)}")

    def sessions(self, name: str) -> Iterator[dict[str, Any]]:
        """A job's sessions, the newest first."""
        return self._pages(f"/api/v1/jobs/{_quote(name)}/sessions", "sessions")

    def steps(self, name: str, **query: int) -> dict[str, Any]:
        """A job's step times, in columns; ``first``, ``last`` and ``points`` choose."""
        return self._json("GET", f"/api/v1/jobs/{_quote(name)}/steps?{urlencode(query)}")

    def ranks(self, name: str, **query: int | str) -> dict[str, Any]:
        """How a job's ranks compared over its steps; ``first``, ``last``, ``ranks`` choose."""
        return self._json("GET", f"/api/v1/jobs/{_quote(name)}/ranks?{urlencode(query)}")

    def session(self, session: int) -> dict[str, Any]:
        """Status and outcome of a session."""
        return self._json("GET", f"/api/v1/sessions/{session}")

    def result(self, session: int) -> dict[str, Any]:
        """The result of ``paceline analyze --json`` for a session's trace."""
        return self._json("GET", f"/api/v1/sessions/{session}/result")

    def analyse_again(self, session: int) -> None:
        """Queue a session that is over."""
        self._json("POST", f"/api/v1/sessions/{session}/analyse", {})

    def remove_session(self, session: int) -> None:
        """Remove a session and its results."""
        self._json("DELETE", f"/api/v1/sessions/{session}")

    def remove_job(self, name: str) -> None:
        """Remove a job with all that is its."""
        self._json("DELETE", f"/api/v1/jobs/{_quote(name)}")

    def events(self, name: str = "") -> Iterator[dict[str, Any]]:
        """Events of the step times, of a job or of all, the newest first."""
        return self._pages("/api/v1/events", "events", {"job": name} if name else {})

    def wait(self, session: int, timeout_s: float = 600.0) -> dict[str, Any]:
        """The session once it is analysed (or that has failed)."""
        until = time.monotonic() + timeout_s
        while True:
            row = self.session(session)
            if row["status"] in ("done", "failed"):
                return row
            if time.monotonic() > until:
                raise MonitorError(f"session {session} is {row['status']} after {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def _pages(
        self, path: str, key: str, query: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        following: int | None = None
        while True:
            cursor = {} if following is None else {"after": str(following)}
            page = self._json("GET", f"{path}?{urlencode({**(query or {}), **cursor})}")
            yield from page[key]
            following = page["next"]
            if following is None:
                return

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Make a request, again while it may succeed later; the answer."""
        request = self._request(method, path, body)
        until = time.monotonic() + self._patience_s
        pause_s, notified = _FIRST_PAUSE_S, False
        while True:
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    content: dict[str, Any] = json.loads(answer.read())
                    return content
            except urllib.error.HTTPError as error:
                wanted_s = self._refusal(error)
                reason = f"it answers {error.code}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                wanted_s, reason = 0.0, str(getattr(error, "reason", error)) or repr(error)
                if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                    raise MonitorError(
                        f"the certificate of {self.url} is not trusted ({reason}); name the file "
                        "of its authority in SSL_CERT_FILE"
                    ) from None
            pause_s = max(wanted_s, pause_s * random.uniform(0.7, 1.3))
            if time.monotonic() + pause_s > until:
                raise MonitorError(f"the monitor at {self.url} cannot be reached: {reason}")
            if not notified:
                self._on_wait(f"the monitor at {self.url} is away ({reason})")
                notified = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _request(self, method: str, path: str, body: Any) -> urllib.request.Request:
        headers = {"Accept": "application/json", "User-Agent": "paceline"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        if self._project:
            path += f"{'&' if '?' in path else '?'}project={_quote(self._project)}"
        return urllib.request.Request(self.url + path, data=data, method=method, headers=headers)

    def _refusal(self, error: urllib.error.HTTPError) -> float:
        """After how many seconds to ask again; raises where that is of no use."""
        with error:
            try:
                body = json.loads(error.read(100_000))
            except (ValueError, OSError, http.client.HTTPException):
                body = {}
        body = body if isinstance(body, dict) else {}
        if error.code not in _LATER:
            reason = str(body.get("error") or error.reason)
            if error.code == 401:
                reason = self._who_are_we(reason)
            raise Refused(
                error.code, f"the monitor at {self.url} refuses: {reason}", body
            ) from None
        after = error.headers.get("Retry-After", "")
        return min(float(after), _MAX_PAUSE_S) if after.isdecimal() else 0.0

    def _who_are_we(self, reason: str) -> str:
        """Why a token was refused, and where it comes from."""
        if self._token:
            return f"{reason}; set PACELINE_TOKEN to one that is good"
        return "a token is needed; set PACELINE_TOKEN (paceline admin token create makes one)"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take secrets elsewhere, and make a GET of a POST."""

    def redirect_request(self, *_: Any) -> None:
        """Do not follow."""
        return


def _quote(name: str) -> str:
    return quote(name, safe="")


def _digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise MonitorError(f"{path} cannot be read: {error.strerror}") from None
    if not size:
        raise MonitorError(f"{path} is empty")
    return size, digest.hexdigest()
