"""Reading upstream: what is asked, and what errors mean."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pymysql
import pytest
from binlog.errors import ConfigError, DecodeError
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ranges import upstream
from drainer.ranges.upstream import (
    DefinitionChanged,
    Range,
    SnapshotGone,
    Source,
    Upstream,
    UpstreamDown,
    UpstreamRefused,
    open_snapshot,
    server_of,
    translated,
)
from drainer.row.codec import Codec
from drainer.row.rules import Condition
from drainer.schema.rules import AppliedRules, Mask, MaskKind
from drainer.schema.view import TableAt
from drainer.sink.errors import DestinationError, DestinationRefused
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError
from drainer.sink.settings import UpstreamServer
from tests.support.row_case import codec_of, view_of
from tests.support.row_changes import make_table
from tests.support.typed_columns import text_type
from tests.support.upstream_case import FakeSession, snapshot_of

KINDS = [
    ("id", FieldType(Tp.LONG, Flag.NOT_NULL)),
    ("name", text_type(Tp.VARCHAR)),
    ("in gbk", FieldType(Tp.VARCHAR, 0, 9, charset="gbk", collate="gbk_bin")),
    ("kind", FieldType(Tp.ENUM, elems=("a",))),
    ("size", FieldType(Tp.FLOAT)),
]
INFO = make_table("s", "t`t", KINDS, primary=["id"]).info
SOURCE = Source("shop", INFO, codec_of(INFO))


def test_session_is_set_to_the_timestamp() -> None:
    session = FakeSession()
    snapshot_of(session)
    assert session.said[-1] == "SET SESSION tidb_snapshot='42'"
    assert "max_execution_time=0," in session.said[0], "or the upstream's own limit ends the SELECT of a range"


def test_session_is_kept_until_an_error_ends_its_use() -> None:
    made = [FakeSession(), FakeSession(), FakeSession()]
    left = iter(made)
    kept = Upstream(lambda ts: snapshot_of(next(left), ts))
    with kept.at(1) as first, kept.at(1) as within:
        assert within is not first
    with pytest.raises(UpstreamDown), kept.at(1) as again:
        assert (again is first, [one.closed for one in made]) == (True, [False, True, False])
        raise UpstreamDown("half read")
    with kept.at(1) as another:
        assert (another is first, made[0].closed) == (False, True)
    with kept.at(2) as moved:
        assert (moved is another, moved.ts, made[2].said[-1]) == (True, 2, "SET SESSION tidb_snapshot='2'")


def test_columns_are_selected_with_their_whole_value() -> None:
    assert SOURCE.query(Range(None, ("5",))) == (
        "SELECT `id`, CAST(`name` AS BINARY), `in gbk`, CAST(`kind` AS UNSIGNED), CAST(`size` AS DOUBLE)"
        " FROM `shop`.`t``t` WHERE `id` < 5"
    )


def test_range_is_read_in_blocks_of_columns() -> None:
    session = FakeSession([[b"1", b"\xff", b"g", b"0", b"1.5"], [b"2", None, None, None, None]])
    blocks = list(snapshot_of(session).read(SOURCE, Range()))
    assert [[column.to_pylist() for column in block] for block in blocks] == [
        [[1], [b"\xff"], [b"g"], [0], [1.5]],
        [[2], [None], [None], [None], [None]],
    ]


def test_column_that_only_the_destination_has_gets_its_missing_value() -> None:
    """A merged table has columns of its other parts, and the part that a row comes from."""
    part = ColumnInfo(-9, "part", len(KINDS), text_type(Tp.VARCHAR, 9), origin_default="p1")
    merged = replace(INFO, columns=(*INFO.columns, part))
    source = Source("shop", INFO, Codec(TableAt(INFO.id, "db", INFO, merged, 1, 1), 1, view_of(INFO)))
    assert source.query(Range()) == SOURCE.query(Range())
    session = FakeSession([[b"1", b"a", None, b"1", None]])
    (block,) = snapshot_of(session).read(source, Range())
    assert [column.to_pylist() for column in block] == [[1], [b"a"], [None], [1], [None], [b"p1"]]


def test_table_is_divided_by_the_size_of_its_first_rows() -> None:
    row: list[bytes | None] = [b"1", b"x" * (5 << 20), b"", b"1", b"1"]
    session = FakeSession([row, row], [[b"7"]], [])
    assert list(snapshot_of(session).divided(SOURCE)) == [Range(None, ("7",)), Range(("7",), None)]
    assert session.said[2].endswith(" LIMIT 200")
    assert session.said[3] == "SELECT `id` FROM `shop`.`t``t` ORDER BY `id` LIMIT 1 OFFSET 3"
    assert session.said[4] == "SELECT `id` FROM `shop`.`t``t` WHERE `id` > 7 ORDER BY `id` LIMIT 1 OFFSET 2"


def test_row_that_cannot_be_decoded_names_its_table() -> None:
    session = FakeSession([[b"one", b"", b"", b"1", b"1"]])
    with pytest.raises(DecodeError, match=r"`shop`\.`t``t` upstream: text of a int column"):
        list(snapshot_of(session).read(SOURCE, Range()))


def test_jobs_in_effect_are_those_that_are_done_where_they_are_shown() -> None:
    done, running = (
        Job(n, ActionType.ADD_COLUMN, state=state) for n, state in ((7, JobState.DONE), (8, JobState.RUNNING))
    )
    session = FakeSession([[running.dump()], [done.dump()]], [server_error(1146)], [server_error(1142)])
    snapshot = snapshot_of(session)
    assert [job.id for job in snapshot.jobs_in_effect()] == [7]
    assert [snapshot.jobs_in_effect() for _ in range(2)] == [[], []]


def test_table_with_the_id_of_another_cluster_is_refused() -> None:
    snapshot = snapshot_of(FakeSession([[b"5"], [b"7"]], [[b"7"]]))
    snapshot.check_ids({5: SOURCE})
    with pytest.raises(UpstreamRefused, match=r"1 tables, such as `shop`\.`t``t`, .* the cluster that pd-urls names"):
        snapshot.check_ids({5: SOURCE, 7: SOURCE})


def server_error(code: int) -> DestinationError:
    return ServerError(code, "why", "host:4000")


def again(code: int) -> DestinationError:
    error = Retry(f"host:4000: error {code}: why")
    error.__cause__ = pymysql.err.OperationalError(code, "why")
    return error


def refused_login() -> DestinationError:
    error = DestinationRefused("host:4000: error 1045: why")
    error.__cause__ = pymysql.err.OperationalError(1045, "why")
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (server_error(9006), SnapshotGone),
        (server_error(8055), SnapshotGone),
        (server_error(1412), DefinitionChanged),
        (server_error(1054), DefinitionChanged),
        (again(8028), DefinitionChanged),
        (again(8022), UpstreamDown),
        (again(8027), UpstreamDown),
        (ConnectionLost("gone"), UpstreamDown),
        (server_error(1142), UpstreamRefused),
        (server_error(1193), UpstreamRefused),
    ],
)
def test_error_of_the_server_is_of_the_kind_that_decides_what_follows(
    error: DestinationError, kind: type[Exception]
) -> None:
    assert type(translated(error, 42)) is kind
    session = FakeSession([[b"1", None, None, None, None], error])
    with pytest.raises(kind):
        list(snapshot_of(session).read(SOURCE, Range()))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (server_error(1142), "[upstream] user: grant it SELECT on the tables"),
        (refused_login(), "[upstream] user: its name or password is wrong"),
        (ConnectionLost("gone"), "[upstream] does not answer"),
        (server_error(9006), "tidb_gc_life_time"),
        (server_error(1193), "[upstream] refuses to be read as of 42"),
    ],
)
def test_error_names_the_section_and_what_is_missing(error: DestinationError, text: str) -> None:
    assert text in str(translated(error, 42))


def test_error_of_tls_names_the_section() -> None:
    section = UpstreamServer.model_validate({"host": "tidb", "security": {"ssl-ca": "/no/such/ca"}})
    config = server_of(section)
    assert config.address == "tidb:4000"
    with pytest.raises(UpstreamRefused, match=r"\[upstream\.security\].*no/such/ca"):
        open_snapshot(config, 42)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_server_that_is_no_tidb_is_refused(flavour: str) -> None:
    session = FakeSession()
    session.flavour = flavour
    config = server_of(UpstreamServer.model_validate({"host": "tidb"}))
    refused = pytest.raises(UpstreamRefused, match=r"\[upstream\] host: tidb:4000 is no TiDB")
    with mock.patch.object(upstream, "connect", return_value=session), refused:
        open_snapshot(config, 42)
    assert session.closed


def test_section_without_a_host_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"upstream\.host"):
        server_of(UpstreamServer.model_validate({}))


def test_rows_are_chosen_and_values_masked_as_those_of_the_stream() -> None:
    rule = AppliedRules(
        "db", INFO, ((2, Mask(MaskKind.CONSTANT, "***")),), Condition.parse("id > 1", "rule"), frozenset(), ()
    )
    source = Source("shop", INFO, Codec(TableAt(INFO.id, "db", INFO, INFO, 1, 1, applied=rule), 1, view_of(INFO)))
    rows: list[list[bytes | None]] = [[b"%d" % number, b"name", None, b"1", None] for number in (1, 2)]
    none, one = snapshot_of(FakeSession([*rows])).read(source, Range())
    assert [len(column) for column in none] == [0] * 5
    assert [column.to_pylist() for column in one] == [[2], [b"***"], [None], [1], [None]]
