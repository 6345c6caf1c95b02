"""Capabilities and syntax of a server of the MySQL family. Values only, filled in by the destination."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

# TiDB's default collation of each character set.
TIDB_DEFAULTS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
# Substitutes of collations that a server lacks, the nearest first.
SUBSTITUTES: Final = {
    "utf8mb4_0900_ai_ci": ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_520_nopad_ci", "utf8mb4_unicode_520_ci"),
    "utf8mb4_0900_bin": ("utf8mb4_nopad_bin", "utf8mb4_bin"),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's capabilities and keywords, and the session that runs the statement.

    `collations`: those it supports, in lower case; empty: unknown, every one is used.
    `expression_indexes`: an index may be on an expression.
    `generated_keys`: a primary key may hold a generated column, and a generated column may be NOT NULL.
    `unenforced_checks`: a CHECK may be NOT ENFORCED.
    `if_exists`: DROP of an index or constraint takes IF EXISTS.
    `validation`: EXCHANGE PARTITION takes WITHOUT VALIDATION.
    `invisible`, `visible`: the keywords for an index that the optimizer ignores or uses.
    `time_zone`: the session's while the statement runs, '' for UTC.
    `bare`: generate only what rows depend on, without foreign keys, CHECKs, expression indexes, expression defaults
    and index visibility.
    """

    collations: frozenset[str] = frozenset()
    expression_indexes: bool = True
    generated_keys: bool = True
    unenforced_checks: bool = True
    if_exists: bool = False
    validation: bool = True
    invisible: str = "INVISIBLE"
    visible: str = "VISIBLE"
    time_zone: str = ""
    bare: bool = False

    def only_rows(self) -> Dialect:
        """A copy with `bare` set."""
        return replace(self, bare=True)

    def collation(self, name: str) -> str:
        """The collation or its nearest substitute on the server; unchanged if there is none."""
        lowered = name.lower()
        if not self.collations or lowered in self.collations:
            return name
        return next((near for near in SUBSTITUTES.get(lowered, ()) if near in self.collations), name)

    def charset(self, charset: str, collate: str) -> str:
        """`CHARACTER SET … COLLATE …`, '' for bytes."""
        if charset in ("", "binary"):
            return ""
        collate = collate or TIDB_DEFAULTS.get(charset.lower(), "")
        return f"CHARACTER SET {charset}" + (f" COLLATE {self.collation(collate)}" if collate else "")
