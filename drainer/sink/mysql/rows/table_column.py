"""A column of a table as the destination's information_schema describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """`collation` and `charset` are '' where it is no text; `fraction`: digits behind the point, None where it has no
    such bound; `type`: its DATA_TYPE, such as `bigint`."""

    collation: str
    fraction: int | None
    type: str = ""
    charset: str = ""
    nullable: bool = True
