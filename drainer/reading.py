"""What a reading task may do beside pulling: fold the rows and cut them into slots. Values that travel to executors."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass

from drainer.schema.view import SchemaView
from drainer.sink.protocol import Dialect


@dataclass(frozen=True, slots=True)
class PackedView:
    """A schema view pickled once for all tasks. `token` names it, so that a worker which has met it before neither
    unpickles it nor makes its decoders anew."""

    token: str
    pickled: bytes

    @classmethod
    def of(cls, view: SchemaView) -> PackedView:
        return cls(uuid.uuid4().hex, pickle.dumps(view, pickle.HIGHEST_PROTOCOL))


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """Decode with `view` for a destination of `dialect`, fold, and cut into `slots`."""

    view: PackedView
    dialect: Dialect
    slots: int
