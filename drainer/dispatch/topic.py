"""Topic names by expression: `{schema}` and `{table}` stand for a table's names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drainer.dispatch.errors import DispatchConfigError

TOPIC_LENGTH_MAX: Final = 249

_LEGAL = r"[A-Za-z0-9._-]*"
_EXPRESSION = re.compile(rf"{_LEGAL}(\{{schema\}})?({_LEGAL}\{{table\}})?{_LEGAL}")
_AVRO = re.compile(rf"{_LEGAL}\{{schema\}}{_LEGAL}\{{table\}}{_LEGAL}")
_FIXED = re.compile(r"[A-Za-z0-9._-]+")
_PLACEHOLDER = re.compile(r"\{schema\}|\{table\}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class TopicExpression:
    """A parsed expression. Without placeholders it is the name of a topic."""

    text: str

    @classmethod
    def parse(cls, text: str, protocol: str = "") -> TopicExpression:
        """Parse an expression. Avro's schemas are registered by topic, so with Avro each table needs a topic of its
        own, or all tables share one topic without placeholders. Raises DispatchConfigError."""
        if _FIXED.fullmatch(text):
            return cls(check_topic(text))
        is_avro = protocol.lower() in ("avro", "flat-avro")
        if not text or not (_AVRO if is_avro else _EXPRESSION).fullmatch(text):
            wanted = "{schema} before {table}, as Avro needs" if is_avro else "{schema} and {table}, in this order"
            raise DispatchConfigError(
                f"topic expression {text!r}: only letters, digits, '.', '_', '-' and {wanted} are allowed"
            )
        return cls(text)

    def topic(self, schema: str, table: str) -> str:
        """Return the topic of a table. Characters that topic names may not have become `_`. A name that is too long is
        truncated."""
        found = self.text.replace("{schema}", _ILLEGAL.sub("_", schema)).replace("{table}", _ILLEGAL.sub("_", table))
        found = found[:TOPIC_LENGTH_MAX]
        return {".": "_", "..": "__"}.get(found, found)

    def may_be(self, topic: str) -> bool:
        """Return whether some table could have this topic."""
        parts = _PLACEHOLDER.split(self.text)
        if len(parts) == 1:
            return self.text == topic
        if len(topic) >= TOPIC_LENGTH_MAX or topic in ("_", "__"):
            return True  # truncated, or `_` in place of an illegal name
        return re.fullmatch(".*".join(map(re.escape, parts)), topic) is not None


def check_topic(name: str) -> str:
    """Return the name. Raises DispatchConfigError if it is not a valid topic name."""
    if not _FIXED.fullmatch(name) or len(name) > TOPIC_LENGTH_MAX or name in (".", ".."):
        raise DispatchConfigError(
            f"topic {name!r}: a name has 1 to {TOPIC_LENGTH_MAX} letters, digits, '.', '_' and '-'"
        )
    return name
