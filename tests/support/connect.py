"""A real Kafka Connect worker for tests, with Debezium's JDBC sink and an Avro converter that a registry knows."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.maven_files import folder_of
from tests.support.kafka import KAFKA_JARS, Broker, log_settings
from tests.support.servers import ROOT, MariaDB, Server, answers, free_port, missing, wait_until

_JARS = ROOT / "scripts" / "jars" / "kafka-connect-4.1.1.txt"
_JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
_DEADLINE_S = 240


@dataclass
class Connect:
    """One worker. It reads committed messages of `broker`, from the beginning."""

    server: Server
    port: int

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=90) as response:
            return json.loads(response.read() or b"null")

    def is_up(self) -> bool:
        assert self.server.alive, self.server.tail()
        return answers(self.port) and bool(self.ask("GET", "/connectors") == [])

    def jdbc_sink(self, name: str, topic: str, destination: MariaDB, **settings: str) -> None:
        """Rows are written by the message's key into tables of the database `ks` that are there. `settings`: with _ for
        the dot."""
        given = {
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "connection.url": f"jdbc:mariadb://127.0.0.1:{destination.port}/ks?connectionTimeZone=UTC",
            "connection.username": destination.user,
            "connection.password": destination.password,
            "topics": topic,
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "schema.evolution": "none",
            "collection.name.format": "${source.table}",
        }
        more = {setting.replace("_", "."): value for setting, value in settings.items()}
        self.ask("PUT", f"/connectors/{name}/config", given | more)

    def failure(self, name: str) -> str:
        """Why the connector's task ended, "" while it has not."""
        tasks = self.ask("GET", f"/connectors/{name}/status")["tasks"]
        return "".join(task.get("trace", "") for task in tasks)


@contextlib.contextmanager
def running_connect(broker: Broker) -> Iterator[Connect]:
    jars = folder_of(_JARS)
    if not jars.is_dir():
        missing("Kafka Connect is not there: scripts/need.sh kafka-connect")
    directory, port = Path(tempfile.mkdtemp(prefix="connect-")), free_port()
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    settings = {
        "bootstrap.servers": broker.address,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": json_converter,
        "value.converter": json_converter,
        "value.converter.replace.null.with.default": "false",
        "offset.storage.file.filename": str(directory / "offsets"),
        "plugin.discovery": "only_scan",
        "offset.flush.interval.ms": "1000",  # it is also how long a task that fails may take to say so
        "consumer.isolation.level": "read_committed",
        "consumer.auto.offset.reset": "earliest",
    }
    worker = directory / "worker.properties"
    worker.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    logging = [str(jar) for jar in folder_of(KAFKA_JARS).glob("log4j-*.jar")]
    command = ["java", *_JVM, log_settings(directory), "-cp", os.pathsep.join([f"{jars}/*", *logging])]
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    connect = Connect(Server([*command, main, str(worker)], directory / "connect.log").start(), port)
    try:
        wait_until(connect.is_up, deadline_s=_DEADLINE_S, what=f"Kafka Connect answers\n{connect.server.tail()}")
        yield connect
    finally:
        connect.server.kill()
        shutil.rmtree(directory, ignore_errors=True)
