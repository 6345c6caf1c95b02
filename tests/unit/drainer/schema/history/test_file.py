"""DDL history from a file."""

import json
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType

from drainer.schema.errors import HistoryBroken
from drainer.schema.history.sources import FileSource, parse_jobs
from tests.support.schema_case import job, table

JOBS = [
    job(1, ActionType.CREATE_SCHEMA, 1, schema=(2, "d")),
    job(3, ActionType.CREATE_TABLE, 2, schema_id=2, table_id=10, table_info=table(10, "t")),
]
DOCUMENTS = [json.dumps(j.to_json()) for j in JOBS]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(DOCUMENTS) + "\n",
        "[\n" + ",\n".join(DOCUMENTS) + "\n]\n",
        json.dumps([j.to_json() for j in JOBS], indent=1),
    ],
    ids=["a job a line", "array of lines", "TiDB's indented array"],
)
def test_history_file_is_read_as_lines_or_json_array(text: str) -> None:
    assert [j.id for j in parse_jobs(text, "f")] == [1, 3]


def test_empty_history_file_has_no_jobs() -> None:
    assert parse_jobs("", "f") == []
    assert parse_jobs("[]", "f") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DOCUMENTS[0] + "\n{oops", "f, line 2: not JSON"),
        (DOCUMENTS[0] + '\n{"id": "three"}', "f, line 2: "),
        (DOCUMENTS[0] + "\n\n17", "f, line 3: a job expected, not '17'"),
        ("[\n" + DOCUMENTS[0] + ",\n", "f, line 3: the array does not end"),
        (DOCUMENTS[0][:-5], "f, line 1: not JSON"),
    ],
)
def test_invalid_history_file_is_refused_with_line_number(text: str, message: str) -> None:
    with pytest.raises(HistoryBroken) as caught:
        parse_jobs(text, "f")
    assert message in str(caught.value)


async def test_changed_history_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(DOCUMENTS[0])
    source = FileSource(path)
    assert [j.id for j in await source.refresh()] == [1]
    assert await source.refresh() == []
    path.write_text("\n".join(DOCUMENTS))
    assert [j.id for j in await source.refresh()] == [1, 3]


async def test_missing_or_binary_history_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HistoryBroken, match=r"nowhere\.json: cannot be read"):
        await FileSource(tmp_path / "nowhere.json").refresh()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(HistoryBroken, match="binary: cannot be read"):
        await FileSource(tmp_path / "binary").refresh()
