"""The arbiter's rules without broker and server: what is new, what is applied together, where reading begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.pb import secondary_binlog_pb2 as pb

from drainer.arbiter.core import ENDED, RUNNING, ArbiterError, Batches, Position, first_after, start_offset
from drainer.kafka_reading.records import KafkaPartition, Record
from drainer.protocol.secondary import SecondaryDecoder, commit_ts_of
from drainer.sink.errors import DestinationRefused
from drainer.sink.replay import Replayed, ReplayedDdl

PLACE = KafkaPartition("7_obinlog", 0)


def dml(commit_ts: int, *ids: int, schema: str = "d", has_key: bool = True) -> bytes:
    """A transaction that inserts rows."""
    table = pb.Table(
        schema_name=schema,
        table_name="t",
        column_info=[pb.ColumnInfo(name="id", mysql_type="int", is_primary_key=has_key)],
        mutations=[
            pb.TableMutation(type=pb.Insert, row=pb.Row(columns=[pb.Column(is_null=False, int64_value=n)])) for n in ids
        ],
    )
    return pb.Binlog(type=pb.DML, commit_ts=commit_ts, dml_data=pb.DMLData(tables=[table])).SerializeToString()


def ddl(commit_ts: int, query: str = "CREATE TABLE t (id INT)", schema: str = "d") -> bytes:
    data = pb.DDLData(schema_name=schema, table_name="t", ddl_query=query.encode())
    return pb.Binlog(type=pb.DDL, commit_ts=commit_ts, ddl_data=data).SerializeToString()


class Killed(Exception):
    """The arbiter was killed."""


class Destination:
    """Keeps what was applied, and the position with it. `kill_at`: the call that is interrupted, 1 the first; odd
    numbers before it had an effect, even ones after."""

    def __init__(self) -> None:
        self.position = ""
        self.done: list[object] = []
        self.together: list[list[int]] = []
        self.ddls: list[ReplayedDdl] = []
        self.kill_at = 0
        self.calls = 0

    def apply(self, transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None) -> None:
        for is_done in (False, True):
            self.calls += 1
            if self.calls == self.kill_at:
                raise Killed
            if not is_done:
                self.position = position
                self.together.append([one.commit_ts for one in transactions])
                self.done += [
                    (one.commit_ts, row.new["id"].value) for one in transactions for row in one.events if row.new
                ]
                if ddl is not None:
                    self.done.append((ddl.commit_ts, *ddl.statements))
                    self.ddls.append(ddl)


Topic = dict[int, bytes]


def probe_of(topic: Topic, asked: list[int] | None = None):
    def probe(offset: int) -> tuple[int, int] | None:
        if asked is not None:
            asked.append(offset)
        found = min((at for at in topic if at >= offset), default=None)
        return None if found is None else (found, commit_ts_of(topic[found]))

    return probe


def life(
    topic: Topic, to: Destination, *, batch_max: int = 64, polls: int = 3, high: int = 0, may_exist: bool = False
) -> Batches:
    """One arbiter, which reads the topic to its end and is then stopped."""
    high = high or max(topic, default=-1) + 1
    at = Position.parse(to.position) if to.position else Position(0, RUNNING)
    offset = start_offset(at, (0, high), probe_of(topic))
    again = high if to.position and at.offset < 0 and at.status == RUNNING else at.again_below
    batches = Batches(
        to.apply,
        SecondaryDecoder(),
        replace(at, offset=offset, status=RUNNING, again_below=again),
        batch_max,
        may_exist=may_exist,
    )
    for count, (number, value) in enumerate((one for one in sorted(topic.items()) if one[0] >= offset), 1):
        batches.add(Record(PLACE, number, None, value))
        if count % polls == 0:
            batches.at_end(number + 1)
    batches.at_end(high)
    batches.end()
    return batches


def topic_of(*values: bytes, step: int = 1) -> Topic:
    return {number * step: value for number, value in enumerate(values)}


def test_transactions_are_applied_in_order_and_batches() -> None:
    to = Destination()
    batches = life(topic_of(ddl(1), dml(2, 1), dml(3, 2), dml(4, 3), dml(5, 4)), to, batch_max=2, polls=9)
    assert to.done == [(1, "CREATE TABLE t (id INT)"), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert to.together == [[], [2, 3], [4, 5], []]
    assert batches.counts == {"Txn": 4, "DDL": 1, "Insert": 4}
    assert Position.parse(to.position) == replace(batches.position, ts=5, status=ENDED, offset=5)


def test_ddls_of_one_job_are_all_run() -> None:
    to = Destination()
    life(topic_of(dml(1, 1), ddl(2, "RENAME TABLE a TO b"), ddl(2, "RENAME TABLE c TO d"), dml(3, 2)), to, polls=9)
    assert to.done == [(1, 1), (2, "RENAME TABLE a TO b"), (2, "RENAME TABLE c TO d"), (3, 2)]


def test_rows_and_ddls_of_the_positions_schema_are_left_out() -> None:
    to = Destination()
    life(topic_of(dml(1, 1, schema="TiDB_binlog"), ddl(2, schema="tidb_binlog"), ddl(3, ""), dml(4, 2)), to)
    assert to.done == [(4, 2)]


@pytest.mark.parametrize("polls", [1, 9])
def test_messages_of_a_drainer_that_begins_again_are_applied_once(polls: int) -> None:
    to = Destination()
    again = [dml(2, 1), dml(3, 2), dml(4, 3)]
    life(topic_of(dml(1, 0), *again, *again, dml(5, 4), dml(5, 4), dml(6, 5)), to, polls=polls)
    assert to.done == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]


@pytest.mark.parametrize("polls", [1, 2, 9])
def test_pieces_of_one_transaction_are_all_applied(polls: int) -> None:
    to = Destination()
    life(topic_of(dml(1, 0), dml(2, 1), dml(2, 2), dml(2, 3), dml(3, 4)), to, polls=polls)
    assert to.done == [(1, 0), (2, 1), (2, 2), (2, 3), (3, 4)]
    if polls == 9:
        assert to.together[0] == [1, 2, 2, 2, 3], "pieces are in one transaction"


def test_pieces_that_come_again_are_applied_once() -> None:
    to = Destination()
    pieces = [dml(2, 1), dml(2, 2), dml(2, 3)]
    life(topic_of(dml(1, 0), *pieces[:2], dml(1, 0), *pieces, *pieces[:2], dml(3, 4)), to, polls=1)
    assert to.done == [(1, 0), (2, 1), (2, 2), (2, 3), (3, 4)]


def test_equal_pieces_without_a_key_are_no_repeats() -> None:
    """Thousands of equal rows in a table without a key."""
    large = bytes(1 << 20)
    position, is_new = Position(1, RUNNING, newest=1).received(2, large, [])
    assert is_new
    events = SecondaryDecoder().decode(None, dml(2, 1, has_key=False))
    again, is_new = position.received(2, large, events)
    assert is_new
    assert again.at == 2
    assert not position.received(2, large, SecondaryDecoder().decode(None, dml(2, 1)))[1], "its rows have a key"


def test_transaction_too_large_for_one_keeps_checkpoint_below_it() -> None:
    to = Destination()
    bytes_max = 2 * len(dml(2, 1)) + 1
    batches = Batches(to.apply, SecondaryDecoder(), Position(0, RUNNING, 0), 64, may_exist=False, bytes_max=bytes_max)
    for number, value in enumerate([dml(1, 0), dml(2, 1), dml(2, 2)]):
        batches.add(Record(PLACE, number, None, value))
    assert to.together == [[1, 2, 2]]
    assert (batches.position.ts, batches.position.newest, batches.position.offset) == (1, 2, 3)
    batches.end()
    assert Position.parse(to.position).status == RUNNING, "the original would need safe mode"
    life(topic_of(dml(1, 0), dml(2, 1), dml(2, 2)), to)
    assert (Position.parse(to.position).ts, Position.parse(to.position).status) == (2, ENDED), "nothing more came"
    life(topic_of(dml(1, 0), dml(2, 1), dml(2, 2), dml(2, 3)), to)
    assert to.done == [(1, 0), (2, 1), (2, 2), (2, 3)]
    assert Position.parse(to.position).ts == 2


def test_arbiter_killed_at_any_point_applies_everything_once() -> None:
    pieces = [dml(6, 7), dml(6, 8), dml(6, 9)]
    values = [
        ddl(1),
        dml(2, 1),
        dml(3, 2),
        ddl(4, "ALTER TABLE t ADD c INT"),
        dml(5, 3),
        *pieces[:2],
        dml(5, 3),
        *pieces,
    ]
    topic = topic_of(*values, dml(7, 10), step=3)
    expected = Destination()
    life(topic, expected)
    for polls in (1, 2, 9):
        for kill_at in range(1, expected.calls + 20):
            to = Destination()
            to.kill_at = kill_at
            try:
                life(topic, to, batch_max=2, polls=polls)
            except Killed:
                to.kill_at = 0
                life(topic, to, batch_max=2, polls=polls)
            assert to.done == expected.done, (polls, kill_at)


def test_after_the_original_only_what_is_above_its_checkpoint_is_applied() -> None:
    to = Destination()
    to.position = '{"ts": 2, "status": 0}'
    life(topic_of(ddl(1), dml(2, 1), dml(2, 2), dml(1, 0), dml(2, 1), dml(3, 3), ddl(4)), to)
    assert to.done == [(3, 3), (4, "CREATE TABLE t (id INT)")]
    assert not to.ddls[0].may_exist


def test_after_a_killed_original_ddls_of_the_topic_may_have_run() -> None:
    to = Destination()
    to.position = '{"ts": 2, "status": 1}'
    topic = topic_of(dml(2, 1), ddl(3))
    life(topic, to)
    life({**topic, 2: ddl(4)}, to)
    assert [one.may_exist for one in to.ddls] == [True, False]
    life({**topic, 2: ddl(4), 3: ddl(5)}, to, may_exist=True)
    assert to.ddls[-1].may_exist


def test_undecodable_message_is_an_error_with_its_place() -> None:
    with pytest.raises(ArbiterError, match=r"7_obinlog\[0\] offset 1: secondary-binlog: "):
        life(topic_of(dml(1, 0), b"\xff"), Destination())


def test_refused_rows_are_an_error_with_their_place() -> None:
    def refuse(transactions: Sequence[Replayed], position: str, ddl: ReplayedDdl | None) -> None:
        raise DestinationRefused("no such table")

    batches = Batches(refuse, SecondaryDecoder(), Position(0, RUNNING, 0), 1, may_exist=False)
    batches.add(Record(PLACE, 3, None, dml(5, 1)))
    with pytest.raises(ArbiterError, match=r"up to 7_obinlog\[0\] offset 3, commit_ts 5: no such table"):
        batches.at_end(4)
    with pytest.raises(ArbiterError, match="no such table"):
        Batches(refuse, SecondaryDecoder(), Position(0, RUNNING, 0), 1, may_exist=False).add(
            Record(PLACE, 3, None, ddl(5))
        )


@pytest.mark.parametrize("gaps", [1, 2, 7])
def test_first_message_above_a_ts_is_found(gaps: int) -> None:
    topic = {5 + number * gaps: dml(10 * number, number) for number in range(1, 40)}
    high = 5 + 42 * gaps  # the last offsets are those of markers
    for ts in range(5, 400, 5):
        asked: list[int] = []
        found = first_after(ts, 5, high, probe_of(topic, asked))
        assert [commit_ts_of(value) for at, value in sorted(topic.items()) if at >= found] == [
            10 * number for number in range(1, 40) if 10 * number > ts
        ]
        assert len(asked) <= 10
    assert first_after(400, 5, high, probe_of({})) == 5


def test_search_in_repeated_messages_loses_none() -> None:
    sent = [1, 2, 3, 4, 5, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7, 8, 9]
    topic = topic_of(*(dml(ts, ts) for ts in sent))
    for ts in range(10):
        found = first_after(ts, 0, len(sent), probe_of(topic))
        assert set(range(ts + 1, 10)) <= set(sent[found:])
        assert found == 0 or sent[found - 1] <= ts


def test_start_offset() -> None:
    topic = topic_of(*(dml(ts, ts) for ts in range(100, 110)))
    kept = {at: value for at, value in topic.items() if at >= 4}
    probe = probe_of(kept)
    assert start_offset(Position(0, RUNNING), (4, 10), probe) == 4
    assert start_offset(Position(50, RUNNING), (0, 10), probe_of(topic)) == 0, "nothing was deleted"
    assert start_offset(Position(104, RUNNING), (4, 10), probe) == 5
    assert start_offset(Position(200, RUNNING), (4, 10), probe) == 10
    assert start_offset(Position(103, RUNNING), (10, 10), probe_of({})) == 10
    assert start_offset(Position(103, RUNNING, 7), (4, 10), probe) == 7
    with pytest.raises(
        ArbiterError, match=r"commit_ts 102, .* offset 4, has 104: .* begin after 103\. .*arbiter_check"
    ):
        start_offset(Position(102, RUNNING), (4, 10), probe)
    for offset in (3, 11):
        with pytest.raises(ArbiterError, match=f"offset {offset}, commit_ts 102, and the topic has offsets 4 to 10"):
            start_offset(Position(102, RUNNING, offset), (4, 10), probe)


def test_position_is_read_as_it_was_written() -> None:
    at = Position(7, RUNNING, 3, 8, ("ab", "cd"), 1, 9)
    assert Position.parse(at.text()) == at
    assert Position.parse('{"ts": 7, "status": 1}') == Position(7, 1, -1, 7)
    for text in ("", "[]", '{"status": 1}', '{"ts": 1, "status": 1, "more": 2}'):
        with pytest.raises(ArbiterError, match="damaged"):
            Position.parse(text)
