"""Classifies a pump's answer to one write. Pure; the only module that interprets gRPC codes.

The caller needs to know whether the pump may hold a copy of the prewrite. After a refusal with a known reason it holds
none. After a lost connection, a timeout or another failure it may hold one, and a clean-up rollback is sent
(correctness rule 5: clean-up rollbacks).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from binlog.pump_error import PumpError, pump_error


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

OK, UNKNOWN, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS = 0, 2, 3, 5, 6
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED = 7, 8, 9, 10
OUT_OF_RANGE, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 11, 12, 14, 16

CODE_NAMES = {
    1: "CANCELLED",
    UNKNOWN: "UNKNOWN",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    NOT_FOUND: "NOT_FOUND",
    ALREADY_EXISTS: "ALREADY_EXISTS",
    PERMISSION_DENIED: "PERMISSION_DENIED",
    RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
    FAILED_PRECONDITION: "FAILED_PRECONDITION",
    ABORTED: "ABORTED",
    OUT_OF_RANGE: "OUT_OF_RANGE",
    UNIMPLEMENTED: "UNIMPLEMENTED",
    13: "INTERNAL",
    UNAVAILABLE: "UNAVAILABLE",
    15: "DATA_LOSS",
    UNAUTHENTICATED: "UNAUTHENTICATED",
}

# A pump returns these codes only before it has written anything.
REFUSALS = frozenset(
    {
        INVALID_ARGUMENT,
        NOT_FOUND,
        PERMISSION_DENIED,
        FAILED_PRECONDITION,
        OUT_OF_RANGE,
        UNIMPLEMENTED,
        UNAUTHENTICATED,
    }
)

# The temporary ones of a pump's refusals: it is busy, full, or not online.
PASSING = frozenset({PumpError.NOT_ONLINE, PumpError.NO_SPACE, PumpError.TOO_FAR_AHEAD, PumpError.OVERLOADED})


def classify(code: int, message: str, kind: str = "") -> Answer:
    """Classify a gRPC status, or an errmsg (as code UNKNOWN, P-RPC-04). `kind`: what the pump calls the error, "" for
    an error of a Go pump."""
    if code == OK:
        return ACKED
    detail = f"{CODE_NAMES.get(code, str(code))}: {message}"
    refusal = pump_error(kind, code=code, text=message)
    if refusal is not None:
        return Answer(Outcome.REFUSED, detail, refusal)
    if code == RESOURCE_EXHAUSTED:
        return Answer(Outcome.TOO_LARGE, detail)
    if code == ALREADY_EXISTS:
        return Answer(Outcome.CONFLICT, detail)
    if code == ABORTED:
        return Answer(Outcome.ROLLED_BACK, detail)
    return Answer(Outcome.REFUSED if code in REFUSALS else Outcome.UNKNOWN, detail)


def not_sent(why: str) -> Answer:
    """Return the answer for a binlog that was not sent, because there was no connection."""
    return Answer(Outcome.NOT_SENT, why)


def lost(why: str) -> Answer:
    """Return the answer for a binlog that was sent and not answered."""
    return Answer(Outcome.UNKNOWN, why)
