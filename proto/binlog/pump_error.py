"""Why a pump refused a request, where its caller decides by that. The text of an error is for people.

Our pumps name the kind in the trailer ERROR_TRAILER of a call, or in WriteError.kind inside a message. A Go pump
answers every error with UNKNOWN and a text. So its texts are matched, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

ERROR_TRAILER: Final = "binlog-error"
_UNKNOWN: Final = 2  # gRPC's status code


class PumpError(StrEnum):
    """Why a pump refused a request; nothing was stored."""

    CLUSTER_MISMATCH = "cluster-mismatch"
    NOT_ONLINE = "not-online"
    NO_SPACE = "no-space"
    TOO_FAR_AHEAD = "too-far-ahead"
    OVERLOADED = "overloaded"


# In the original's spelling (`P-RPC-01`, `P-RPC-03`, `P-RPC-06`).
_ORIGINAL_TEXTS: Final = (
    ("cluster ID are mismatch", PumpError.CLUSTER_MISMATCH),
    ("no online:", PumpError.NOT_ONLINE),
    ("not online", PumpError.NOT_ONLINE),
    ("no available space", PumpError.NO_SPACE),
)


def pump_error(name: str, *, code: int, text: str) -> PumpError | None:
    """Return the kind of an error; None for one that callers know by its status alone. `name`: the kind as the pump
    sent it, "" for none; `code` and `text`: gRPC's."""
    if name:
        return PumpError(name) if name in frozenset(PumpError) else None
    if code != _UNKNOWN:
        return None
    return next((kind for begin, kind in _ORIGINAL_TEXTS if begin in text), None)


def name_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return what the trailers of a call name; "" if they name nothing."""
    found = next((value for name, value in trailers or () if name == ERROR_TRAILER), "")
    return found if isinstance(found, str) else ""
