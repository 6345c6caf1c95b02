"""`reparo -data-dir …`: exit code 0, 1 for bad settings, 2 for a failure or a bad command line (K-03)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.command_line import INTERRUPTED, discard_stdout
from binlog.runtime.config import load_or_exit
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from drainer.reparo.config import PRINT, PROGRAM, ReparoConfig
from drainer.reparo.replaying import Chosen, Counts, print_all, replay
from drainer.reparo.stream import FilePosition, Stream
from drainer.sink.registry import replayer

_log = log.get_logger("reparo")


def main(argv: list[str] | None = None) -> int:
    config = load_or_exit(PROGRAM, argv)
    try:
        log.setup(config.log_level, config.log_file)
        config.check()
        counts = run(config)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"reparo: {error}\n")
        return 1
    except BinlogError as error:
        _log.error("reparo failed", kind=type(error).__name__, error=str(error))
        if config.log_file:  # otherwise the log is on standard error
            sys.stderr.write(f"reparo: {error}\n")
        return 2
    except KeyboardInterrupt:
        _log.info("interrupted; into a database the next run goes on behind the last transaction that it committed")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of its output has closed it, as `head` does
        discard_stdout()
        return 0
    _log.info("done", transactions=counts.transactions, rows=counts.rows, ddls=counts.ddls)
    return 0


def run(config: ReparoConfig) -> Counts:
    """Raises BinlogError."""
    chosen = Chosen(config.filter(), frozenset(config.ignore_txn_commit_ts), config.start_ts, config.safe_mode)
    if config.dest_type == PRINT:
        with _stream(config, None) as stream:
            return print_all(stream, chosen, sys.stdout.write)
    to = replayer(config.dest_type, config.dest_db.model_dump(by_alias=True), config.replay())
    try:
        position = FilePosition.parse(to.open(chosen.is_left_out))
        if position is not None:
            _log.info("going on where the destination stands", destination=to.name, commit_ts=position.commit_ts)
        with _stream(config, position) as stream:
            return replay(stream, to, chosen, config.txn_batch)
    finally:
        to.close()


@contextmanager
def _stream(config: ReparoConfig, position: FilePosition | None) -> Iterator[Stream]:
    """Return the stream, with a progress bar if a terminal is standard error and gets nothing else."""
    console = Console(stderr=True)
    shown = console.is_terminal and not (config.dest_type == PRINT and sys.stdout.isatty())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task("files", total=None)
        read: dict[int, int] = {}

        def advanced(number: int, read_bytes: int) -> None:
            if shown:
                read[number] = read_bytes
                progress.update(task, completed=sum(read.values()))

        ends = config.start_ts, config.stop_ts
        stream = Stream(Path(config.data_dir), *ends, position, config.skip_damaged, advanced)
        progress.update(task, total=stream.total_bytes())
        yield stream


if __name__ == "__main__":
    sys.exit(main())
