"""Names in schemas, and the subjects under which a registry stores schemas."""

from __future__ import annotations

from typing import Final, Literal

from drainer.protocol.errors import ProtocolConfigError

SubjectNames = Literal["ticdc", "topic", "record", "topic-record"]
SUBJECT_NAMES: Final = ("ticdc", "topic", "record", "topic-record")
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS: Final = frozenset("0123456789")


def avro_name(name: str) -> str:
    """Replace each character that Avro's names do not have by `_`, and put `_` in front of a leading digit. Different
    names may become the same."""
    if not name:
        return ""
    first, rest = name[0], name[1:]
    head = first if first in _LETTERS else f"_{first}" if first in _DIGITS else "_"
    return head + "".join(c if c in _LETTERS or c in _DIGITS else "_" for c in rest)


def record_namespace(namespace: str, schema: str) -> str:
    """Return the namespace of a record, from the changefeed's namespace and the database's name."""
    if not schema:
        return avro_name(namespace)
    return f"{avro_name(namespace)}.{avro_name(schema)}"


def key_subject(names: SubjectNames, topic: str) -> str:
    """Return the subject of a key schema. A table's key and value records have the same name, so key schemas are stored
    under the topic's name whatever `names` says."""
    return f"{_topic(names, topic)}-key"


def value_subject(names: SubjectNames, topic: str, record: str) -> str:
    """Return the subject of a value schema. `record`: the record's name with its namespace.

    With `names` = ticdc: the topic, with every `.` replaced by `_`. The other strategies are Confluent's:
    TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy. Raises ProtocolConfigError for any other value of
    `names`.
    """
    if names == "record":
        return record
    if names == "topic-record":
        return f"{topic}-{record}"
    return f"{_topic(names, topic)}-value"


def _topic(names: SubjectNames, topic: str) -> str:
    if names not in SUBJECT_NAMES:
        raise ProtocolConfigError(f"avro-subject-names is {names!r}, not one of {', '.join(SUBJECT_NAMES)}")
    return topic.replace(".", "_") if names == "ticdc" else topic
