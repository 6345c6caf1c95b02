"""PyMySQL's connection for LOAD DATA LOCAL from memory, whatever file the server names.

The protocol lets a server answer any statement with the name of a file of the client's, which is then sent. Here no
file is ever opened: what is sent are the bytes that were offered for this one statement, once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import CR
from pymysql.err import OperationalError

_PACKET_BYTES: Final = 1 << 16
_COUNTS: Final = re.compile(rb"(\d+)\D+(\d+)\D+(\d+)\D+(\d+)\D*\Z")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The counts that the server reported. `skipped`: rows that it did not write."""

    records: int
    deleted: int
    skipped: int
    warnings: int


def counts(message: bytes) -> Loaded | None:
    """Parse the server's `Records: 3  Deleted: 0  Skipped: 0  Warnings: 0`, in any language. None for any other
    message."""
    found = _COUNTS.search(message)
    return None if found is None else Loaded(*(int(number) for number in found.groups()))


class _Result(MySQLResult):
    """The server's response to one statement."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        rows, connection.offered = connection.offered, None
        if rows is None:
            connection._force_close()
            raise OperationalError(
                CR.CR_SERVER_LOST, "the server asked for a file that was not offered to it; nothing was sent"
            )
        view = memoryview(rows)
        for begin in range(0, len(view), _PACKET_BYTES):
            connection.write_packet(bytes(view[begin : begin + _PACKET_BYTES]))
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())  # type: ignore[attr-defined]


class InfileConnection(pymysql.connections.Connection):
    """`offered`: what the next statement's LOCAL INFILE gets; taken away when it is sent."""

    offered: bytes | None = None
    _result: Any

    def _read_query_result(self, unbuffered: bool = False) -> int:
        assert not unbuffered, "results are read whole"
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)
