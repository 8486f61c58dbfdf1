"""Exception for a request that is answered with an error."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 (an answer, not an error)
    """A refused request, with the reason for the web layer's answer.

    Attributes:
        status: HTTP status.
        retry_s: seconds until a repetition makes sense; None = it makes none.
        extra: additional keys of the answer.
    """

    def __init__(
        self, status: int, message: str, *, retry_s: float | None = None, **extra: int
    ) -> None:
        super().__init__(message)
        self.status, self.retry_s, self.extra = status, retry_s, extra


class JobGone(Refusal):
    """The job was removed while data for it came."""

    def __init__(self) -> None:
        super().__init__(503, "the job was removed; try again later", retry_s=1)
