"""A column of a table as the destination's information_schema describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the destination's table. `collation` and `charset`: '' if it is not text; `fraction`: number of
    fractional digits, None if unlimited; `type`: its DATA_TYPE, such as `bigint`."""

    collation: str
    fraction: int | None
    type: str = ""
    charset: str = ""
    nullable: bool = True
