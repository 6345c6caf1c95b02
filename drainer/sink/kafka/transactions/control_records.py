"""Records of the control topic: claims of drivers, a changefeed's position, and marks of slots. Pure.

    partition 0      claim/<changefeed>        the driver; the record's offset is the epoch of all that it writes
                     <epoch>/position          position, open intent and notes, of the driver of that epoch
                     <epoch>/job/<id>          a DDL job that was run
                     <epoch>/load/<id>         how many ranges of a table the first load has loaded, and has
                     <epoch>/borders/<id>/<n>  the borders between these ranges, from the n-th one on
    partition 1 + n  mark                      the last range of which slot n is committed, in its rows' transaction

The topic is compacted, so the last record of a key counts. The epoch is part of the keys. So records of an older driver
that nothing fences off overwrite nothing, and a driver that has taken over writes its complete state again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from binlog.topic.kafka import Record

from drainer.protocol.encoder import Message
from drainer.sink.base import Identity, Intent, TableLoad
from drainer.sink.document_position import Document
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved
from drainer.sink.kafka.producer import Producer, ProducerLost
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.position import JobMark, Stored, body_of, intent_of, intent_text, stored_of
from drainer.sink.retry import RetryDeadline

POSITION_PARTITION: Final = 0
COUNTS_NOTE: Final = "topics"  # the number of partitions of each topic that are used
CLAIM_PREFIX: Final = b"claim/"
MARK_KEY: Final = b"mark"
BORDERS_MAX: Final = 30  # in a record: TiDB's longest key is 12 KiB, twice as much as a literal
_OF_EPOCH: Final = re.compile(rb"(\d+)/(position|job/-?\d+|load/\d+|borders/\d+/\d+)")


@dataclass(frozen=True, slots=True)
class EpochClaim:
    """A driver that took the changefeed over. `id`: random, because a control topic that is deleted and created again
    has the same offsets again."""

    epoch: int
    cluster_id: int
    changefeed: str
    node_id: str
    id: str

    @property
    def owner(self) -> Owner:
        return self.cluster_id, self.changefeed


Pair = tuple[bytes, bytes | None]
Owner = tuple[int, str]  # cluster id and changefeed
KafkaPartition = tuple[str, int]  # topic and partition


def claim_key(owner: Owner) -> bytes:
    """Return the key of a changefeed's claim. Each changefeed has its own key, so that two changefeeds that claim a new
    control topic at the same time do not overwrite each other's claim."""
    return CLAIM_PREFIX + json.dumps(owner).encode()


def claim_value(identity: Identity, claim_id: str = "") -> bytes:
    return _json({**asdict(identity), "id": claim_id})


def claims(records: Iterable[Record], label: str, owner: Owner | None = None) -> list[EpochClaim]:
    """Return the last claim of each changefeed, without withdrawn ones. `owner`: only of this changefeed. Raises
    DestinationRefused for a claim that cannot be parsed."""
    last = {record.key: record for record in records if (record.key or b"").startswith(CLAIM_PREFIX)}
    found = [_claim(record, label) for record in last.values() if record.value is not None]
    return [claim for claim in found if owner is None or claim.owner == owner]


def _claim(record: Record, label: str) -> EpochClaim:
    body = _parsed(record.value, label)
    try:
        id_ = str(body["id"])
        return EpochClaim(record.offset, int(body["cluster_id"]), str(body["changefeed"]), str(body["node_id"]), id_)
    except (KeyError, TypeError, ValueError) as error:
        raise _foreign(label, repr(error)) from error


def check_claims(
    records: Iterable[Record], epoch: int, label: str, owner: Owner | None = None, claim_id: str = ""
) -> None:
    """Raise Fenced if the newest claim of `owner` is not that of `epoch` and `claim_id`: a later driver has claimed, or
    the control topic was created again. `records`: at least the one at offset `epoch`, and every later claim."""
    newest = max(claims(records, label, owner), key=lambda claim: claim.epoch, default=None)
    if newest is None:
        raise made_anew(label)
    if newest.epoch != epoch:
        raise Fenced(f"{label}: drainer {newest.node_id!r} has taken over (epoch {newest.epoch}, ours is {epoch})")
    if newest.id != claim_id:
        raise made_anew(label)


def made_anew(label: str) -> Fenced:
    """Return the error of a driver whose claim no longer exists."""
    return Fenced(f"{label}: the claim of this drainer no longer exists: the control topic was created again")


def document_of(records: Iterable[Record], label: str) -> Document:
    """Return the state that the greatest epoch's driver has written. Raises DestinationRefused for other records."""
    last: dict[bytes, bytes | None] = {record.key or b"": record.value for record in records}
    by_epoch: dict[int, dict[str, bytes]] = {}
    for key, value in last.items():
        matched = _OF_EPOCH.fullmatch(key)
        if matched is not None and value is not None:
            by_epoch.setdefault(int(matched[1]), {})[matched[2].decode()] = value
    written = [epoch for epoch, found in by_epoch.items() if "position" in found]
    if not written:
        return Document()
    epoch = max(written)
    found = by_epoch[epoch]
    try:
        body = _parsed(found["position"], label)
        notes = dict(body.pop("notes"))
        document = Document(stored_of({**body, "epoch": epoch}, label), notes=notes)
        for name, value in found.items():
            if name.startswith("job/"):
                mark = JobMark(**_parsed(value, label))
                document.jobs[mark.job_id] = mark
            elif name.startswith("load/"):
                load = _load_of(int(name.removeprefix("load/")), found, label)
                document.loads[load.table_id] = load
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(label, repr(error)) from error
    return document


def _load_of(table_id: int, found: dict[str, bytes], label: str) -> TableLoad:
    """Return the first load's progress of a table. `found`: one epoch's records, by their key without the epoch."""
    body = _parsed(found[f"load/{table_id}"], label)
    if body["borders"] is None:
        return TableLoad(table_id, None, int(body["loaded"]))
    names = (f"borders/{table_id}/{begin}" for begin in range(0, body["borders"], BORDERS_MAX))
    borders = [tuple(map(str, border)) for name in names for border in _parsed(found[name], label)["borders"]]
    return TableLoad(table_id, tuple(borders), int(body["loaded"]))


def changed(before: Document, after: Document) -> list[Pair]:
    """Return the records that change `before` into `after`. A new epoch writes the complete state, and then deletes the
    records of the former epoch."""
    if after.stored is None:
        return []
    former, now = _state(before) if before.stored is not None else {}, _state(after)
    epoch = before.stored.epoch if before.stored is not None else -1
    anew = epoch != after.stored.epoch
    put = [name for name, value in now.items() if anew or former.get(name, _json) != value]
    gone = [name for name in reversed(former) if anew or name not in now]
    return [
        *((_key(after.stored.epoch, name), _value(now[name])) for name in put),
        *((_key(epoch, name), None) for name in gone),
    ]


def _state(document: Document) -> dict[str, object]:
    """Each record's name and what its value is made of, in the order of writing: a load refers to its borders."""
    state: dict[str, object] = {"position": (document.stored, document.notes)}
    state |= {f"job/{id_}": mark for id_, mark in document.jobs.items()}
    for id_, load in document.loads.items():
        borders = load.borders or ()
        for begin in range(0, len(borders), BORDERS_MAX):
            state[f"borders/{id_}/{begin}"] = {"borders": borders[begin : begin + BORDERS_MAX]}
        state[f"load/{id_}"] = {"loaded": load.loaded, "borders": None if load.borders is None else len(borders)}
    return state


def _value(of: object) -> bytes:
    if isinstance(of, tuple):
        return _position_value(*of)
    return _json(asdict(of) if isinstance(of, JobMark) else of)


def taken(document: Document, epoch: int, node_id: str) -> Document:
    """Return the state as the driver of `epoch` writes it when it takes over."""
    assert document.stored is not None, "a position comes first"
    return replace(document, stored=replace(document.stored, epoch=epoch, node_id=node_id))


def mark_value(intent: Intent) -> bytes:
    return intent_text(intent, "done").encode()


def is_marked(records: Sequence[Record], intent: Intent, label: str) -> bool:
    """Return whether the last mark of a slot's partition is that of this range. Raises PositionMoved if that mark's
    range was cut into slots in another way, and DestinationRefused for a mark that cannot be parsed."""
    value = next((record.value for record in reversed(records) if record.key == MARK_KEY), None)
    if value is None:
        return False
    marked, _ = intent_of(value.decode(errors="replace"), label)
    if marked.until_ts != intent.until_ts:
        return False
    if marked != intent:
        raise PositionMoved(
            f"{label}: ({marked.after_ts}, {marked.until_ts}] was written in slots as {marked}, and is to be written "
            f"as {intent}; a range must be cut as its intent says"
        )
    return True


def _key(epoch: int, name: str) -> bytes:
    return f"{epoch}/{name}".encode()


def _position_value(stored: Stored, notes: dict[str, Any]) -> bytes:
    """Without what its key and its intent have."""
    body = {name: value for name, value in body_of(stored).items() if name not in ("epoch", "stage")}
    return _json(body | {"notes": notes})


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _parsed(value: bytes | None, label: str) -> dict[str, Any]:
    try:
        body = json.loads(value or b"")
    except ValueError as error:
        raise _foreign(label, str(error)) from error
    if not isinstance(body, dict):
        raise _foreign(label, f"{body!r} is no object")
    return body


def _foreign(label: str, why: str) -> DestinationRefused:
    return DestinationRefused(
        f"{label} was not written by this version of the drainer ({why}): start the one that wrote it, or name another "
        f"control-topic"
    )


# The claims of drivers on a changefeed's control topic: the newest claim of a changefeed is its driver's.
#
# A claim is a record of the position's partition. Its offset is the driver's epoch. Each changefeed needs a control
# topic of its own, so the oldest claim of another changefeed makes a driver stop.


class Claims:
    """Writes the claim of one driver and checks it against the claims of others. Call `take` before other methods."""

    def __init__(self, config: KafkaSection, identity: Identity, reader: Reader, label: str) -> None:
        """`reader`: of the control topic; `label`: begins the text of errors."""
        self.owner: Owner = identity.cluster_id, identity.changefeed
        self._config = config
        self._reader = reader
        self._label = label
        self.id = uuid.uuid4().hex
        self._value = claim_value(identity, self.id)
        self._epoch = -1
        self._polled = 0  # claims before this offset are known

    def take(self, deadline: RetryDeadline) -> int:
        """Append this driver's claim and return its offset, the epoch. Raises DestinationRefused if the control topic
        is another changefeed's."""
        found = claims(self._reader.everything(POSITION_PARTITION, deadline), self._label)
        self._withdraw_later(found, deadline)
        self._send(self.owner, self._value, deadline)
        records = self._reader.everything(POSITION_PARTITION, deadline)
        self._epoch = self._polled = max((one.offset for one in records if one.value == self._value), default=-1)
        if self._epoch < 0:
            raise made_anew(self._label)
        self._check_first(claims(records, self._label), deadline)
        return self._epoch

    def check(self, records: Sequence[Record]) -> None:
        """Raise Fenced if these records of the position's partition have a newer claim of this changefeed."""
        check_claims(records, self._epoch, self._label, self.owner, self.id)

    def poll(self, deadline: RetryDeadline) -> None:
        """Look for claims written since the last look. Raises Fenced if another driver has claimed."""
        if self._reader.end(POSITION_PARTITION, deadline) < self._polled:
            raise made_anew(self._label)
        records = self._reader.everything(POSITION_PARTITION, deadline, begin=self._polled)
        ours = self._reader.everything(POSITION_PARTITION, deadline, begin=self._epoch, records_max=1)
        self.check([*ours, *records])
        if records:
            self._polled = records[-1].offset + 1

    def _check_owner(self, found: Iterable[EpochClaim]) -> None:
        for claim in found:
            if claim.owner != self.owner:
                raise DestinationRefused(
                    f"{self._config.control_topic} is the control topic of changefeed {claim.changefeed!r} of cluster "
                    f"{claim.cluster_id}: each changefeed needs its own (control-topic)"
                )

    def _check_first(self, found: Sequence[EpochClaim], deadline: RetryDeadline) -> None:
        """Two changefeeds may both find an unclaimed topic and claim it. The first claim wins; the other changefeed
        withdraws its own and stops."""
        try:
            self._check_owner(claim for claim in found if claim.epoch < self._epoch)
        except DestinationRefused:
            self._send(self.owner, None, deadline)
            raise

    def _withdraw_later(self, found: Sequence[EpochClaim], deadline: RetryDeadline) -> None:
        """Withdraw claims of other changefeeds that were written after ours. Such a changefeed may have died before it
        withdrew its claim itself, and the claim must not stop the owner of the topic. Raises DestinationRefused if
        another changefeed's claim is the oldest one."""
        ours = max((claim.epoch for claim in found if claim.owner == self.owner), default=None)
        self._check_owner(claim for claim in found if ours is None or claim.epoch < ours)
        for claim in found:
            if claim.owner != self.owner:
                self._send(claim.owner, None, deadline)

    def _send(self, owner: Owner, value: bytes | None, deadline: RetryDeadline) -> None:
        """Send a claim; `value` None withdraws it. Waits for the acknowledgement of all replicas whatever
        `required-acks` is: the claim is read again at once. One that is sent twice counts where it is the last time."""
        acknowledged = {"acks": "-1", "enable.idempotence": "true"}

        def send() -> None:
            producer = Producer(self._config.producer_settings() | acknowledged)
            claim = Message(claim_key(owner), value, 0, 0)
            try:
                producer.init(self._config.control_topic, deadline)
                producer.send(self._config.control_topic, POSITION_PARTITION, (claim,), deadline)
                producer.flush(deadline)
            finally:
                producer.drop()

        deadline.repeat(send, (ProducerLost,))
