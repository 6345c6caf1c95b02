"""The Kafka demo's programs: configurations that drainer and readers take, and errors that say what to run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from demo.command import Options, parse
from demo.kafka import servers
from demo.kafka.feeds import Feed, feeds
from demo.processes import DemoError
from drainer.kafka_reading.address import kafka_address
from drainer.protocol.registry import make_encoder
from drainer.sink.kafka.settings.section import KafkaSection

FEEDS = feeds("127.0.0.1:9092", "http://127.0.0.1:8081/apis/ccompat/v7")


@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.name)
def test_feed_configuration_is_valid_for_drainer(feed: Feed, tmp_path: Path) -> None:
    feed.drainer(tmp_path, "http://127.0.0.1:2379")
    given = tomllib.loads((tmp_path / f"{feed.name}.toml").read_text())
    assert given["changefeed"] == feed.name
    section = KafkaSection.model_validate(given["syncer"]["to"], by_alias=True, by_name=False)
    section.check()
    assert section.protocol == feed.name
    topic = section.router().topic("shop", "orders")
    assert topic == ("shop" if feed.name == "open-protocol" else "shop_orders")
    assert section.router().rule("shop", "orders").method.value == "index-value"


@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.name)
def test_feed_uri_is_valid_for_readers_and_has_resolved_events(feed: Feed, tmp_path: Path) -> None:
    """It must tell what is complete, and old rows: a table without a key has nothing else to be deleted by."""
    address = kafka_address(feed.uri, "test", {})
    encoder = make_encoder(address.options)
    assert encoder.resolved(1)
    assert address.options.protocol != "avro" or address.options.avro_output_old_row
    assert feed.topics[0] == address.topic
    for program in (feed.printer(tmp_path), feed.consumer(tmp_path), feed.checker(tmp_path)):
        assert feed.uri in program.argv
        assert [program.argv[at + 1] for at, word in enumerate(program.argv) if word == "--topic"] == feed.topics


def test_the_two_feeds_share_no_topic() -> None:
    """`^shop_` is none of the others."""
    (topic,), (other, pattern) = (feed.topics for feed in FEEDS)
    assert topic != other
    assert not re.search(str(pattern), str(topic)) and not re.search(str(pattern), str(other))


def test_broker_without_java_names_command_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DemoError, match=r"Java 17 is not there: run `scripts/need.sh java`"):
        servers.broker(tmp_path)


@pytest.mark.parametrize(("start", "needed"), [(servers.broker, "kafka"), (servers.registry, "registry")])
@pytest.mark.usefixtures("java_without_jars")
def test_server_without_jars_names_command_to_install_them(
    tmp_path: Path, start: Callable[[Path], object], needed: str
) -> None:
    with pytest.raises(DemoError, match=f"not there: run `scripts/need.sh {needed}`, or `make demo-kafka`"):
        start(tmp_path)
    cache = tmp_path / ".cache" / "tidb-binlog"
    (cache / f"{needed}-1").mkdir(parents=True)
    (cache / "apicurio-registry-1").mkdir()
    if needed == "registry":
        with pytest.raises(DemoError, match=r"jar is not there: run `scripts/need.sh registry`"):
            start(tmp_path)


def test_demo_command_line_parses_options_and_refuses_invalid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    def read(*argv: str) -> Options:
        return parse(list(argv), prog="demo", description="", seconds=30, rate=150)

    assert (read().seconds, read().rate, read().crash) == (30, 150, True)
    given = read("--seconds", "5", "--no-crash", "--directory", "x")
    assert (given.seconds, given.crash, given.directory) == (5, False, Path("x"))
    for wrong in (("--seconds", "0"), ("--rate", "-1"), ("--writers", "0")):
        with pytest.raises(SystemExit) as refused:
            read(*wrong)
        assert refused.value.code == 2
        assert wrong[0] in capsys.readouterr().err


def test_new_cluster_id_never_begins_with_dash() -> None:
    """Kafka's program takes a word that begins with a dash for one; of random ids one in 64 does."""
    made = {servers.new_cluster_id() for _ in range(1000)}
    assert len(made) == 1000
    assert {(len(one), one[0]) for one in made} == {(22, "A")}
