"""The pump's node id, and the lock on its data directory."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from binlog.cluster.node import check_node_id
from binlog.errors import BinlogError, ConfigError
from binlog.runtime.fields import split_host_port
from binlog.runtime.log import get_logger

_log = get_logger("pump.cluster.identity")


class DirectoryLock:
    """An exclusive lock, held from the constructor until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        """Create the directory (0700) and lock it. Raises BinlogError if another process holds the lock, ConfigError
        if the directory cannot be created."""
        path = directory / ".lock"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = "a file of that name exists" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(f"data-dir {directory} cannot be used: {why}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise BinlogError(f"{path}: pkg/file: file already locked (another pump uses this data-dir)") from error

    def release(self) -> None:
        os.close(self._fd)


def node_id(directory: Path, configured: str, addr: str) -> str:
    """Return the id stored in `.node`, else the configured id, else `<hostname>:<port>`, which is then stored in
    `.node`.

    Raises ConfigError with the file or the id that cannot be used.
    """
    path = directory / ".node"
    try:
        kept = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        kept = ""
    except (OSError, UnicodeDecodeError) as error:
        if not configured:
            raise ConfigError(f"node id cannot be read from {path}: {error}") from error
        kept = ""
    try:
        if kept:
            if configured and configured.strip() != kept:
                _log.warning(
                    "node-id of the configuration is ignored", configured=configured, kept=kept, file=str(path)
                )
            return check_node_id(kept)
        if configured:
            return check_node_id(configured)
        made = check_node_id(f"{socket.gethostname()}:{split_host_port(addr)[1]}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    temporary = path.with_suffix(".tmp")
    temporary.write_text(made, encoding="utf-8")
    temporary.chmod(0o600)
    temporary.rename(path)
    return made


def check_same_node(recorded: str, name: str, configured: str, directory: Path) -> None:
    """Raise ConfigError if the index says that another pump wrote this data-dir and the new name is not configured.
    With the new name, drainers would wait for the old one for ever. `recorded`: the id in the index; "" if unknown."""
    if recorded not in ("", name) and configured.strip() != name:
        raise ConfigError(
            f"{directory / '.node'} makes this pump {name!r}, but its data-dir was written by pump {recorded!r}. If "
            f"the file was damaged or removed, write that id into it; to give the pump another name, set node-id to it"
        )
