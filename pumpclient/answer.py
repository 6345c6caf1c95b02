"""Classifies a pump's answer to one write. Pure; the only module that interprets gRPC codes.

The caller needs to know whether the pump may hold a copy of the prewrite. After a refusal with a known reason it holds
none. After a lost connection, a timeout or another failure it may hold one, and a clean-up rollback is sent
(correctness rule 5: clean-up rollbacks).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from binlog.errors import PumpError, pump_error
from grpc import StatusCode


class Outcome(Enum):
    """Result of one try.

    - ACKED: the binlog is durable.
    - REFUSED: the pump refused before it stored anything.
    - TOO_LARGE: the binlog is too large for any pump.
    - CONFLICT: the binlog contradicts what the pump has stored. Permanent.
    - ROLLED_BACK: the pump has rolled the transaction back. Permanent.
    - NOT_SENT: the binlog was not sent.
    - UNKNOWN: the pump may have stored the binlog.
    """

    ACKED = "acked"
    NOT_SENT = "not sent"
    REFUSED = "refused"
    TOO_LARGE = "too large"
    CONFLICT = "conflict"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one try. `detail`: gRPC status and message, for display; `refusal`: why the pump refused, if
    that decides what is done next."""

    outcome: Outcome
    detail: str = ""
    refusal: PumpError | None = None

    @property
    def acked(self) -> bool:
        return self.outcome is Outcome.ACKED

    @property
    def final(self) -> bool:
        """Whether the pump decided about the binlog permanently. A retry is then useless, and the pump is healthy."""
        return self.outcome in (Outcome.ACKED, Outcome.TOO_LARGE, Outcome.CONFLICT, Outcome.ROLLED_BACK)

    @property
    def heard(self) -> bool:
        """Whether the pump answered."""
        return self.outcome not in (Outcome.UNKNOWN, Outcome.NOT_SENT)

    @property
    def passes(self) -> bool:
        """Whether the pump refused for a temporary reason, so that it may accept the same binlog later."""
        return self.refusal in PASSING


ACKED = Answer(Outcome.ACKED)

_STATUSES = {status.value[0]: status for status in StatusCode}

_OUTCOMES = {
    # A pump returns these only before it has written anything.
    StatusCode.INVALID_ARGUMENT: Outcome.REFUSED,
    StatusCode.NOT_FOUND: Outcome.REFUSED,
    StatusCode.PERMISSION_DENIED: Outcome.REFUSED,
    StatusCode.FAILED_PRECONDITION: Outcome.REFUSED,
    StatusCode.OUT_OF_RANGE: Outcome.REFUSED,
    StatusCode.UNIMPLEMENTED: Outcome.REFUSED,
    StatusCode.UNAUTHENTICATED: Outcome.REFUSED,
    StatusCode.RESOURCE_EXHAUSTED: Outcome.TOO_LARGE,
    StatusCode.ALREADY_EXISTS: Outcome.CONFLICT,
    StatusCode.ABORTED: Outcome.ROLLED_BACK,
}

# The temporary ones of a pump's refusals: it is busy, full, or not online.
PASSING = frozenset({PumpError.NOT_ONLINE, PumpError.NO_SPACE, PumpError.TOO_FAR_AHEAD, PumpError.OVERLOADED})


def classify(code: int, message: str, kind: str = "") -> Answer:
    """Classify a gRPC status, or an errmsg (as code UNKNOWN, P-RPC-04). `kind`: what the pump calls the error, "" for
    an error of a Go pump."""
    status = _STATUSES.get(code)
    if status is StatusCode.OK:
        return ACKED
    detail = f"{status.name if status is not None else code}: {message}"
    refusal = pump_error(kind, code=code, text=message)
    outcome = _OUTCOMES.get(status, Outcome.UNKNOWN) if status is not None else Outcome.UNKNOWN
    return Answer(Outcome.REFUSED if refusal is not None else outcome, detail, refusal)


def not_sent(why: str) -> Answer:
    """Return the answer for a binlog that was not sent, because there was no connection."""
    return Answer(Outcome.NOT_SENT, why)


def lost(why: str) -> Answer:
    """Return the answer for a binlog that was sent and not answered."""
    return Answer(Outcome.UNKNOWN, why)
