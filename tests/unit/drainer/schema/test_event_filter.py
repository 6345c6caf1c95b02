"""Event filter: what is left out of which tables (D-FI-04, D-FI-05)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.errors import ConfigError
from binlog.tidb.job import ActionType, Job
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.config import Config
from drainer.row.codec import Decoder
from drainer.schema.catalog import Catalog
from drainer.schema.filter import DDL_EVENTS, EventFilter, EventRule, Filter, TablePatterns, Wildcards
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy, RewriteRule, RewriteRules
from drainer.schema.segmenter import walk
from drainer.schema.state import Schema, independent
from drainer.schema.steps import Ddl, Located, TableChange
from tests.support.row_case import INT, Step, transaction, view_of
from tests.support.row_case import table as row_table
from tests.support.schema_case import BEGIN_TS, ddl, job, table, ts
from tests.unit.drainer.schema.test_rules import shown
from tests.unit.drainer.schema.test_segmenter import ADD_B, DONE, batch_of

DROP_T = job(9, ActionType.DROP_TABLE, 9, schema_id=2, table_id=10, query="DROP TABLE t")
DROP_D = job(9, ActionType.DROP_SCHEMA, 9, schema=(2, "d"), query="drop database d")
RENAMED = job(
    9,
    ActionType.RENAME_TABLE,
    9,
    schema_id=2,
    table_id=10,
    table_info=table(10, "u", ["a"]),
    query="rename table t to u",
)


TABLE_T = Wildcards("d", "t")


def rule(*events: str, tables: TablePatterns | Wildcards = TABLE_T, texts: tuple[str, ...] = ()) -> EventRule:
    return EventRule.create(tables, events, texts, owner="rule")


def ran(done: Job, *rules: EventRule) -> bool:
    """Whether the DDL runs downstream."""
    schema = Schema.open(JobHistory([*DONE, done]), position_ts=BEGIN_TS, policy=Policy(events=EventFilter(rules)))
    binlog = ddl(ts(2), 9, done.query, state=0 if done.query.lower().startswith("drop") else 5)
    return any(isinstance(step, Ddl) for step in walk(batch_of(binlog), schema))


@pytest.mark.parametrize(
    ("done", "one", "runs"),
    [
        (DROP_T, rule("drop table"), False),
        (DROP_T, rule(" Drop Table "), False),
        (DROP_T, rule("all"), False),
        (DROP_T, rule("all ddl"), False),
        (DROP_T, rule("all dml"), True),
        (DROP_T, rule("truncate table", "none"), True),
        (DROP_T, rule(texts=("^drop",)), False),
        (DROP_T, rule(texts=("add column", "table t$")), False),
        (DROP_T, rule(texts=("^table",)), True),
        (DROP_T, rule("drop table", tables=Wildcards("d", "x")), True),
        (DROP_T, rule("drop table", tables=TablePatterns.parse(["d.*", "!d.t"])), True),
        (DROP_T, rule("drop table", tables=TablePatterns.parse(["d.*"])), False),
        (ADD_B, rule("add column"), False),
        (ADD_B, rule("alter table"), False),
        (ADD_B, rule("create index", "drop column"), True),
        (RENAMED, rule("rename table", tables=Wildcards("d", "u")), False),  # by its new name
        (RENAMED, rule("rename table", tables=Wildcards("d", "t")), False),  # and by its old one
        (RENAMED, rule("alter table"), True),
        (DROP_D, rule("drop database", tables=Wildcards("d")), False),
        (DROP_D, rule("drop schema", tables=Wildcards("d", "*")), True),  # a rule for tables
        (DROP_D, rule(texts=("^drop",), tables=TablePatterns.parse(["d.t"])), False),  # as TiCDC
    ],
)
def test_ddl_runs_unless_rule_of_its_table_names_its_event_or_text(done: Job, one: EventRule, runs: bool) -> None:
    assert ran(done, one) is runs
    assert ran(done, rule("none"), one) is runs


def of_parts(*kinds: ActionType) -> Job:
    """ADD_B, but as the job of a statement of several changes."""
    subs = [{"type": int(kind), "schema_version": 0} for kind in kinds]
    return replace(ADD_B, type=ActionType.MULTI_SCHEMA_CHANGE, rest={"multi_schema_info": {"sub_jobs": subs}})


@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ((rule("drop index", "add column"),), False),
        ((rule("drop index"), rule("add column")), False),
        ((rule("multi schema change"),), False),
        ((rule("drop index"),), True),
        ((rule("drop index"), rule("add column", tables=Wildcards("d", "x"))), True),
    ],
)
def test_statement_of_several_changes_is_left_out_if_each_is_named(rules: tuple[EventRule, ...], runs: bool) -> None:
    assert ran(of_parts(ActionType.DROP_INDEX, ActionType.ADD_COLUMN), *rules) is runs


def moved(table_id: int, old: str, new: str) -> TableChange:
    before, after = table(table_id, old), table(table_id, new)
    return TableChange(Located(table_id, "d", before), Located(table_id, "d", after))


@pytest.mark.parametrize(
    ("kind", "changes", "kept"),
    [
        (ActionType.RENAME_TABLES, [moved(1, "a", "a2"), moved(2, "t", "t2")], ["a"]),
        (ActionType.RENAME_TABLES, [moved(1, "a", "a2"), moved(2, "x", "t")], ["a"]),
        (ActionType.RENAME_TABLES, [moved(1, "t", "x"), moved(1, "x", "y"), moved(2, "a", "b")], ["a"]),
        (ActionType.RENAME_TABLES, [moved(1, "t", "x")], None),
        (ActionType.EXCHANGE_TABLE_PARTITION, [moved(1, "a", "a"), moved(2, "t", "t")], None),
    ],
)
def test_of_statement_of_several_tables_only_named_ones_are_left_out(
    kind: ActionType, changes: list[TableChange], kept: list[str] | None
) -> None:
    one = rule("rename table", "exchange table partition")
    proposed = Ddl(job(9, kind, 9), ts(2), False, "d", "", (), "…", ts(2), tuple(changes))
    step = Policy(events=EventFilter((one,))).step(proposed, "…")
    assert (step and [change.before.name for change in step.changes if change.before]) == kept


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("shard_*", "SHARD_7", True),
        ("shard_?", "shard_77", False),
        ("t[0-9]", "t5", True),
        ("t[!0-9]", "t5", False),
        ("t.", "tx", False),
    ],
)
def test_wildcards_match_names_as_original(pattern: str, name: str, matches: bool) -> None:
    assert Wildcards(pattern, pattern).match(name, name) is matches
    assert Wildcards(pattern, pattern, is_case_sensitive=True).match(name, name) is (matches and name.islower())


def test_alter_table_event_has_every_kind_of_alter_table() -> None:
    one = DDL_EVENTS["alter table"]
    assert {ActionType.ADD_COLUMN, ActionType.ADD_INDEX, ActionType.TRUNCATE_TABLE_PARTITION} <= one
    assert DDL_EVENTS["drop index"] == {ActionType.DROP_INDEX, ActionType.DROP_INDEXES}
    assert not {ActionType.CREATE_TABLE, ActionType.DROP_TABLE, ActionType.RENAME_TABLE, ActionType.DROP_SCHEMA} & one


KEYED = row_table([("k", INT), ("v", INT)], handle="k", table_id=101, name="t")
BARE = row_table([("k", INT), ("v", INT)], table_id=102, name="other")
STEPS = st.tuples(st.sampled_from([KEYED, BARE]), st.sampled_from(["insert", "update", "delete"]), st.integers(1, 4))
KINDS = {"insert": Kind.INSERT, "update": Kind.UPDATE, "delete": Kind.DELETE}


@pytest.mark.parametrize(
    ("one", "upserts"),
    [
        (rule("delete"), True),
        (rule("truncate table"), True),
        (rule("drop database", tables=Wildcards("d")), True),
        (rule("exchange table partition"), True),
        (rule(texts=("truncate",)), True),
        (rule("drop database", tables=TablePatterns.parse(["d.x"])), True),
        (rule("add column", "none"), False),
        (rule("delete", tables=Wildcards("d", "x")), False),
    ],
)
def test_table_of_which_something_is_left_out_is_written_as_upserts(one: EventRule, upserts: bool) -> None:
    """The destination keeps rows that upstream has deleted, and a later row may have their key."""
    schema = Schema.open(JobHistory(DONE), position_ts=BEGIN_TS, policy=Policy(events=EventFilter((one,))))
    assert schema.view().tables[10].current.upserts is upserts


@pytest.mark.parametrize("rows_min", [0, 256], ids=["as columns", "one by one"])
@given(
    drawn=st.lists(st.lists(STEPS, min_size=1, max_size=4), max_size=8), left_out=st.sets(st.sampled_from(list(Kind)))
)
def test_filtered_changes_equal_stream_without_them(rows_min: int, drawn: list, left_out: set[Kind]) -> None:  # type: ignore[type-arg]
    """Folded and unfolded, in the driver and cut to slots; of two tables one has a rule."""

    def payloads(kept: set[Kind]) -> list[bytes]:
        found = []
        for number, steps in enumerate(drawn):
            made: list[tuple[object, Step]] = [
                (info, (kind, {1: k, 2: number}, {1: k, 2: number + 1}))
                for info, kind, k in steps
                if info is BARE or KINDS[kind] in kept
            ]
            found.append(transaction(made, commit_ts=BEGIN_TS + number))  # type: ignore[arg-type]
        return found

    everything, wanted = payloads(set(Kind)), payloads(set(Kind) - left_out)
    plain = view_of(KEYED, BARE)
    policy = Policy(events=EventFilter((rule(*(kind.name for kind in left_out), tables=Wildcards("db", "T*")),)))
    tables, ignored = policy.viewed(dict(plain.tables))
    view, plain = replace(plain, ignored_kinds=ignored, tables=tables), replace(plain, tables=tables)

    assert shown(view, everything, rows_min) == shown(plain, wanted, rows_min)


def test_row_that_is_left_out_is_not_even_decoded() -> None:
    """Also where the first bad row is looked for."""
    view = replace(view_of(KEYED), ignored_kinds={101: frozenset({Kind.INSERT})})
    steps: list[tuple[object, Step]] = [(KEYED, ("insert", {1: 1, 2: 1}, {1: 1, 2: 1}))]
    assert list(Decoder(view).rows([transaction(steps, commit_ts=BEGIN_TS)])) == []  # type: ignore[arg-type]


def configured(**syncer: object) -> EventFilter:
    return Config.model_validate({"syncer": syncer}).syncer.events()


ORIGINAL = {
    "table-migrate-rule": [
        {
            "binlog-filter-rule": ["truncates"],
            "source": {"schema": "test*", "table": "log_*"},
            "target": {"schema": "x"},
        }
    ],
    "binlog-filter-rule": {"truncates": {"ignore-event": ["truncate table", "delete"], "ignore-sql": ["^drop"]}},
}
OF_TICDC = {"matcher": ["test*.log_*"], "ignore-event": ["truncate table", "delete"], "ignore-sql": ["^drop"]}
TICDC = {"filter": {"event-filters": [OF_TICDC]}}


@pytest.mark.parametrize("settings", [ORIGINAL, TICDC], ids=["original", "TiCDC"])
def test_configured_rules_leave_out_events_and_texts(settings: dict[str, object]) -> None:
    found = configured(**settings)
    assert found.ignored_kinds("Test1", "LOG_a") == {Kind.DELETE}
    assert found.ignored_kinds("test1", "orders") == frozenset()
    assert found.ignores_ddl(ActionType.TRUNCATE_TABLE, "TRUNCATE TABLE log_a", "test1", "log_a")
    assert found.ignores_ddl(ActionType.DROP_TABLE, "DROP TABLE log_a", "test1", "log_a")
    assert not found.ignores_ddl(ActionType.ADD_COLUMN, "alter table log_a add drop_at int", "test1", "log_a")


def test_case_sensitive_rules_distinguish_names() -> None:
    found = configured(**ORIGINAL, **{"case-sensitive": True})
    assert found.ignored_kinds("test1", "log_a")
    assert not found.ignored_kinds("Test1", "log_a")


@pytest.mark.parametrize(
    ("syncer", "message"),
    [
        (
            {"table-migrate-rule": [{"binlog-filter-rule": ["x"], "source": {"schema": "s"}}]},
            "no binlog-filter-rule 'x'",
        ),
        (
            {"filter": {"event-filters": [{"matcher": ["a.b"], "ignore-event": ["delet"]}]}},
            "unknown event 'delet'; the ev",
        ),
        ({"filter": {"event-filters": [{"matcher": ["a.b"], "ignore-sql": ["("]}]}}, r"ignore-sql '\(' is no regular"),
        ({"filter": {"event-filters": [{"matcher": ["a.b"]}]}}, "event filter 1: give ignore-event or ignore-sql"),
        ({"filter": {"event-filters": [{"matcher": ["ab"], "ignore-sql": ["x"]}]}}, "expected database.table"),
        (
            {"filter": {"event-filters": [{"matcher": ["a.b"], "ignore-insert-value-expr": "id > 1"}]}},
            "rows are not filtered by values: remove it",
        ),
    ],
)
def test_invalid_rule_is_refused_with_its_name(syncer: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        configured(**syncer)


def test_digest_of_filters_changes_with_rules_only() -> None:
    """An open batch must be finished with the same rules; one begun before there were rules stays valid."""
    digest = Config.model_validate({}).syncer.digest()
    assert digest == Config.model_validate({"syncer": {"case-sensitive": True}}).syncer.digest()
    changed = {Config.model_validate({"syncer": one}).syncer.digest() for one in (ORIGINAL, TICDC)}
    other = Config.model_validate({"syncer": {**ORIGINAL, "case-sensitive": True}}).syncer.digest()
    assert len({digest, *changed, other}) == 4


# ddl-rewrite rules.


def test_rewrite_rule_is_found_by_job_id_or_commit_ts() -> None:
    rules = RewriteRules([RewriteRule(("A",), job_id=7), RewriteRule((), commit_ts=99)])
    assert rules.text_for(7, 1) == ("A",)
    assert rules.text_for(8, 99) == ()
    assert rules.text_for(8, 1) is None


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([RewriteRule(("A",))], "rule 1: give either job-id or commit-ts"),
        ([RewriteRule((), job_id=1, commit_ts=2)], "rule 1: give either"),
        ([RewriteRule((), job_id=1), RewriteRule((), job_id=1)], "rule 2: a second rule for 1"),
    ],
)
def test_invalid_rewrite_rule_is_refused_with_its_number(rules: list[RewriteRule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RewriteRules(rules)


# CREATE TABLE LIKE from another current database (cases of names: tests/cases/schema/names.txt).


SOURCE = table(10, "s", ("id", "v"))


def catalog(*schemas: str) -> Catalog:
    """A table `s` in each of these."""
    made = Catalog()
    for number, schema in enumerate(schemas, start=20):
        made.put(number, schema, 1, replace(SOURCE, id=number))
    return made


@pytest.mark.parametrize(
    ("schemas", "text", "wanted"),
    [
        (("a",), "CREATE TABLE `b`.`t` LIKE `s`", "CREATE TABLE `b`.`t` LIKE `a`.`s`"),
        (("a",), "create table if not exists b.t (like s) /* x */", "CREATE TABLE `b`.`t` LIKE `a`.`s`"),
        (("a", "c"), "CREATE TABLE `b`.`t` LIKE `s`", None),
        ((), "CREATE TABLE `b`.`t` LIKE `s`", None),
        (("a",), "CREATE TABLE `t` LIKE `s`", None),
        (("a",), "CREATE TABLE `b`.`t` LIKE `a`.`s`", None),
        (("a",), "CREATE TABLE `b`.`t` (`like` INT, `s` INT)", None),
    ],
)
def test_create_table_like_names_schema_of_its_source_table(
    schemas: tuple[str, ...], text: str, wanted: str | None
) -> None:
    """The text stays where it says enough, and where more than one table may be meant."""
    made = job(5, ActionType.CREATE_TABLE, 5, schema_id=30, table_info=replace(SOURCE, id=11, name="t"))
    assert independent(made, text, catalog(*schemas)) == (wanted or text)


def test_only_a_destination_that_is_to_know_learns_which_tables_leave_it() -> None:
    a_to_x, exchanged = moved(1, "a", "x"), (moved(1, "a", "a"), moved(3, "x", "x"))
    chain = (moved(1, "b", "c"), moved(2, "x", "a"), moved(1, "c", "x"), moved(3, "d", "e"))
    names = Filter.create(rules=["*.*", "!d.x*"])

    def told(kind: ActionType, *changes: TableChange, tells: bool) -> list[tuple[str, str]] | None:
        proposed = Ddl(job(9, kind, 9), ts(2), False, "d", "", (), "…", ts(2), changes)
        step = Policy(names, shows_lost=tells).step(proposed, "…")
        both = [(one.before, one.after) for one in step.changes] if step else None
        return both and [(old.name if old else "", new.name if new else "") for old, new in both]

    assert told(ActionType.RENAME_TABLE, a_to_x, tells=False) is None
    assert told(ActionType.RENAME_TABLE, a_to_x, tells=True) == [("a", "")]
    assert told(ActionType.RENAME_TABLE, moved(1, "x", "a"), tells=True) is None
    assert told(ActionType.RENAME_TABLE, moved(1, "x", "xx"), tells=True) is None
    assert told(ActionType.RENAME_TABLES, *chain, tells=True) == [("d", "e"), ("c", "")]
    assert told(ActionType.EXCHANGE_TABLE_PARTITION, *exchanged, tells=False) is None
    assert told(ActionType.EXCHANGE_TABLE_PARTITION, *exchanged, tells=True) == [("a", "a")]
