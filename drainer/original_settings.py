"""Settings of the original's drainer that have no effect here, and values of them that would change what is replicated.

The first are accepted, so that the original's drainer.toml can be used unchanged; a warning names those that are not
the default. The second are rejected, because this drainer does not have the requested function. In addition, what the
lists of tables of the original's drainer and of reparo consist of.
"""

from __future__ import annotations

from typing import Annotated

from binlog.runtime.fields import Section
from pydantic import AfterValidator, BaseModel, Field

WITHOUT_EFFECT = "accepted, without effect"
# These modes change the meaning of a DDL's text; upstream's jobs are parsed as in TiDB's default modes.
_TEXT_MODES = frozenset({"ANSI", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "PIPES_AS_CONCAT", "IGNORE_SPACE"})
_OF_DESTINATION = "the position is in the destination"
_SLOTS_INSTEAD = "the changes of a key are always in one slot; worker-count sets the number of slots"
_IN_DESTINATION = "the position is in the destination itself: remove it, and begin with initial-commit-ts of the "
_CHECKPOINT_TYPES = ("", "mysql", "tidb")  # where it is a table, as ours; else it is a file, or elsewhere
_CHECKPOINT_SCHEMA, _CHECKPOINT_TABLE = "tidb_binlog", "checkpoint"
_IN_SCHEMA = f"the position is in the schema {_CHECKPOINT_SCHEMA}; begin with initial-commit-ts of {{value}}"
_IN_TABLE = f"the position is in the table {_CHECKPOINT_TABLE}; begin with initial-commit-ts of {{value}}"


def only(*allowed: object, why: str) -> AfterValidator:
    """Return a validator that refuses every value but these. `why`: its error, in which {} is the value as Python
    writes it, and {value} is the value."""

    def check(value: object) -> object:
        if value not in allowed:
            raise ValueError(why.replace("{}", repr(value)).replace("{value}", str(value)))
        return value

    return AfterValidator(check)


def _usual_text(value: str) -> str:
    wrong = sorted(_TEXT_MODES & {mode.strip().upper() for mode in value.split(",")})
    if wrong:
        raise ValueError(f"{', '.join(wrong)} is not supported: DDLs are parsed as in TiDB's default modes")
    return value


class TableName(Section):
    """One table in a filter list, of `[syncer]` and of reparo; `~` begins a regular expression."""

    db_name: str = Field(description="database; `~` begins a regular expression")
    tbl_name: str = Field(description="table; `~` begins a regular expression")


class RelaySection(Section):
    """`[syncer.relay]` of the original."""

    log_dir: str = Field(
        "",
        description="if it is set, every batch for MySQL, TiDB or MariaDB is one transaction there, so that nothing "
        "has to be finished after a disaster; nothing is written to the folder",
    )
    max_file_size: int = Field(10_485_760, description=f"{WITHOUT_EFFECT}: there are no relay logs")


class CheckpointSection(Section):
    """`[syncer.to.checkpoint]` of the original."""

    type: Annotated[str, only(*_CHECKPOINT_TYPES, why=_IN_DESTINATION + "{value}'s")] = Field(
        "", description=f"{WITHOUT_EFFECT}: mysql or tidb; the position is in the destination"
    )
    schema_: Annotated[str, only("", _CHECKPOINT_SCHEMA, why=_IN_SCHEMA)] = Field(
        "", alias="schema", description=f"must be {_CHECKPOINT_SCHEMA} where it is given"
    )
    table: Annotated[str, only("", _CHECKPOINT_TABLE, why=_IN_TABLE)] = Field(
        "", description=f"must be {_CHECKPOINT_TABLE} where it is given"
    )
    host: Annotated[str, only("", why=_IN_DESTINATION + "checkpoint that is there")] = Field(
        "", description="must be empty: the position is in the destination"
    )
    user: str = Field("", description=f"{WITHOUT_EFFECT}: {_OF_DESTINATION}")
    password: str = Field("", repr=False, description=f"{WITHOUT_EFFECT}: {_OF_DESTINATION}")
    encrypted_password: str = Field(
        "", alias="encrypted_password", repr=False, description=f"{WITHOUT_EFFECT}: {_OF_DESTINATION}"
    )
    port: int = Field(0, description=f"{WITHOUT_EFFECT}: {_OF_DESTINATION}")


class OriginalSyncerSection(Section):
    """Keys of `[syncer]` that only the original uses."""

    sql_mode: Annotated[str, AfterValidator(_usual_text)] = Field(
        "", description=f"{WITHOUT_EFFECT}: values are written as upstream has them, or the drainer stops"
    )
    txn_batch: int = Field(
        20, description=f"{WITHOUT_EFFECT}: txn-rows-max limits the rows of a downstream transaction"
    )
    safe_mode: bool = Field(False, description=f"{WITHOUT_EFFECT}: rows are always written so that repeats do no harm")
    disable_dispatch: bool = Field(False, description=f"{WITHOUT_EFFECT}: {_SLOTS_INSTEAD}")
    enable_dispatch: bool = Field(True, description=f"{WITHOUT_EFFECT}: {_SLOTS_INSTEAD}")
    disable_detect: bool = Field(False, description=f"{WITHOUT_EFFECT}: {_SLOTS_INSTEAD}")
    enable_detect: bool = Field(True, description=f"{WITHOUT_EFFECT}: {_SLOTS_INSTEAD}")
    load_schema_snapshot: bool = Field(
        False, description=f"{WITHOUT_EFFECT}: the schema is read from TiKV where that still has it"
    )
    relay: RelaySection = Field(default_factory=lambda: RelaySection.model_validate({}))


def given_without_effect(config: BaseModel, path: str = "") -> dict[str, str]:
    """Return the paths of settings that were given, have no effect, and are not the default, with the reason; "" if it
    is obvious.
    """
    found: dict[str, str] = {}
    for name in sorted(config.model_fields_set):
        field, value = type(config).model_fields[name], getattr(config, name)
        setting = f"{path}{field.alias or name}"
        inner = [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, BaseModel)]
        if inner:
            for one in inner:
                found |= given_without_effect(one, f"{setting}.")
        elif (field.description or "").startswith(WITHOUT_EFFECT) and value != field.get_default(
            call_default_factory=True
        ):
            found[setting] = (field.description or "").removeprefix(WITHOUT_EFFECT).removeprefix(": ")
    return found
