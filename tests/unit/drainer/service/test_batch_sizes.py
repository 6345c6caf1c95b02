"""How large batches are, which bounds the memory that one takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.config import Config
from drainer.service.daemon import batch_sizes


@pytest.mark.parametrize(
    ("db_type", "distributed", "driver", "distributed_bytes"),
    [
        ("file", True, 8 << 20, 0),
        ("jsonl", True, 2 << 20, 64 << 20),
        ("jsonl", False, 8 << 20, 0),
        ("mysql", False, 8 << 20, 0),
    ],
)
def test_batch_size_in_driver_is_larger_for_destinations_written_only_there(
    db_type: str, distributed: bool, driver: int, distributed_bytes: int, tmp_path: Path
) -> None:
    to = {"file": {"dir": str(tmp_path)}, "jsonl": {"path": str(tmp_path)}, "mysql": {"host": "h"}}[db_type]
    config = Config.model_validate({"syncer": {"db-type": db_type, "to": to, "distributed": distributed}})
    destination = config.syncer.sink()
    sizes = batch_sizes(config, destination)
    # Without distribution, too, an open batch of an earlier start is finished by executors.
    assert (destination.parallel is not None) == (db_type != "file")
    assert (sizes.driver_bytes_max, sizes.distributed_bytes_max) == (driver, distributed_bytes)
    assert 0 < sizes.driver_count_max <= 40_000


@pytest.mark.parametrize(("db_type", "distributed"), [("mysql", False), ("tidb", False), ("jsonl", True)])
def test_relay_log_dir_keeps_batches_of_a_database_in_one_transaction(
    db_type: str, distributed: bool, tmp_path: Path
) -> None:
    to = {"path": str(tmp_path)} if db_type == "jsonl" else {"host": "h"}
    config = Config.model_validate({"syncer": {"db-type": db_type, "to": to, "relay": {"log-dir": "relay"}}})
    destination = config.syncer.sink()
    assert destination.parallel is not None  # a batch that was begun before can be finished
    assert (batch_sizes(config, destination).distributed_bytes_max > 0) == distributed
