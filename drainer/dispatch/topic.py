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
    """One that was parsed; without placeholders it is a topic's name."""

    text: str

    @classmethod
    def parse(cls, text: str, protocol: str = "") -> TopicExpression:
        """Raises DispatchConfigError. Avro's schemas are registered by topic, so each table needs a topic of its own
        there, or all of them one that is named."""
        if _FIXED.fullmatch(text):
            return cls(check_topic(text))
        is_avro = protocol.lower() in ("avro", "flat-avro")
        if not text or not (_AVRO if is_avro else _EXPRESSION).fullmatch(text):
            wanted = "{schema} before {table}, as Avro needs" if is_avro else "{schema} and {table}, in this order"
            raise DispatchConfigError(
                f"topic expression {text!r}: only letters, digits, '.', '_', '-' and {wanted} may stand there"
            )
        return cls(text)

    def topic(self, schema: str, table: str) -> str:
        """Characters that no topic may have become `_`; what is too long is cut off."""
        found = self.text.replace("{schema}", _ILLEGAL.sub("_", schema)).replace("{table}", _ILLEGAL.sub("_", table))
        found = found[:TOPIC_LENGTH_MAX]
        return {".": "_", "..": "__"}.get(found, found)

    def may_be(self, topic: str) -> bool:
        """Whether some table's topic could be this one."""
        parts = _PLACEHOLDER.split(self.text)
        if len(parts) == 1:
            return self.text == topic
        if len(topic) >= TOPIC_LENGTH_MAX or topic in ("_", "__"):
            return True  # cut off, or another name in place of an illegal one
        return re.fullmatch(".*".join(map(re.escape, parts)), topic) is not None


def check_topic(name: str) -> str:
    """Raises DispatchConfigError for what is no topic's name."""
    if not _FIXED.fullmatch(name) or len(name) > TOPIC_LENGTH_MAX or name in (".", ".."):
        raise DispatchConfigError(
            f"topic {name!r}: a name has 1 to {TOPIC_LENGTH_MAX} letters, digits, '.', '_' and '-'"
        )
    return name
