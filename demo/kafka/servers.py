"""A Kafka broker (KRaft, one node) and a schema registry as programs, from the jars of `scripts/need.sh`."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from demo.processes import DemoError, Program, free_port, jars_folder, missing

MAKE = "demo-kafka"
NO_LISTENERS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType({})
_BROKER_JVM = ("-Xms96m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_REGISTRY_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ABSOLUTE} %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """`address`: host:port for clients."""

    program: Program
    address: str

    def ready(self) -> bool:
        try:
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=5).brokers)
        except KafkaException:
            return False


@dataclass(frozen=True, slots=True)
class Registry:
    """`url`: that of the registry's Confluent-compatible API."""

    program: Program
    url: str

    def ready(self) -> bool:
        try:
            return isinstance(self._ask("GET", "/subjects"), list)
        except (OSError, ValueError):
            return False

    def require_compatibility(self) -> None:
        """Require the compatibility that is the default of Confluent's registry: a reader of a new schema can read
        messages of the preceding one.
        """
        try:
            self._ask("PUT", "/config", {"compatibility": "BACKWARD"})
        except (OSError, ValueError) as error:
            raise DemoError(f"the schema registry does not answer: {error}\n{self.program.tail()}") from None

    def _ask(self, method: str, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: object = json.loads(answer.read())
            return found


def broker(directory: Path) -> Broker:
    """Format the broker's data and return the broker. Raises DemoError if Java or the jars are missing."""
    jars = jars_folder("kafka", MAKE)
    home = directory / "kafka"
    home.mkdir()
    port, controller = free_port(), free_port()
    file, logging = home / "server.properties", home / "log4j2.properties"
    file.write_text(properties_text(broker_settings(home / "data", port, controller)))
    logging.write_text(_LOGGING)
    java = ["java", *_BROKER_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars}/*"]
    made = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", new_cluster_id(), "-c", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise DemoError(f"Kafka's data could not be formatted:\n{made.stdout}{made.stderr}")
    program = Program("the Kafka broker", [*java, "kafka.Kafka", str(file)], directory / "kafka.log")
    return Broker(program, f"127.0.0.1:{port}")


def registry(directory: Path) -> Registry:
    """Return the registry. Raises DemoError if Java or the jar is missing."""
    jar = next(iter(sorted(jars_folder("apicurio-registry", MAKE, "registry").glob("*-runner.jar"))), None)
    if jar is None:
        raise DemoError(missing("the schema registry's jar is", "registry", MAKE))
    port = free_port()
    where = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    program = Program(
        "the schema registry", ["java", *_REGISTRY_JVM, *where, "-jar", str(jar)], directory / "registry.log"
    )
    return Registry(program, f"http://127.0.0.1:{port}/apis/ccompat/v7")


def new_cluster_id() -> str:
    """Make a cluster id. The first byte makes its first letter an A, because an id that begins with a dash would be
    parsed as an option.
    """
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def broker_settings(
    data: Path, port: int, controller: int, listeners: Mapping[str, tuple[str, int]] = NO_LISTENERS
) -> dict[str, str]:
    """Return the settings of a broker that is its own controller. `listeners`: those in addition to the one at `port`,
    name → security protocol and port. The broker's internal topics are small, because fifty partitions of one cost a
    second at each start."""
    at = {"PLAINTEXT": ("PLAINTEXT", port), "CONTROLLER": ("PLAINTEXT", controller), **listeners}
    addresses = ",".join(f"{name}://127.0.0.1:{number}" for name, (_, number) in at.items())
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": addresses,
        "advertised.listeners": addresses,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, (protocol, _) in at.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
        "log.index.size.max.bytes": str(1 << 20),
    }


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the text of a properties file."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
