"""A request that is answered with an error."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 (an answer, not an error)
    """Why a request is not done, for the web layer to answer with.

    Attributes:
        status: of HTTP.
        retry_s: after how many seconds to ask again; None = not the same again.
        extra: more keys of the answer.
    """

    def __init__(
        self, status: int, message: str, *, retry_s: float | None = None, **extra: int
    ) -> None:
        super().__init__(message)
        self.status, self.retry_s, self.extra = status, retry_s, extra
