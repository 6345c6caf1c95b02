"""`kafka-consumer URI --to sqlite:FILE`: applies topics from where the destination stands, until it is stopped.

Exit code 0 after a signal, or at the end of the topics with --once; 1 for bad settings, 2 for a failure
or a bad command line.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from threading import Event as Stop
from typing import Final, Self

from binlog.errors import BinlogError, ConfigError
from binlog.runtime import log
from binlog.runtime.command_line import Program, discard_stdout, flags_of
from binlog.runtime.config import load_or_exit
from pydantic import Field, model_validator

from drainer.kafka_consumer.consumer import Consumer
from drainer.kafka_consumer.run import Destination, consume, print_events
from drainer.kafka_reading.address import TopicsSection, kafka_address
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions
from drainer.sink.registry import consumer_replayer

_log = log.get_logger("kafka-consumer")
# In these protocols dates and times are text, and every column has its own name.
_FOR_SERVERS: Final = ("open", "canal", "simple")


class Arguments(TopicsSection):
    """The command line."""

    to: str = Field(
        "",
        description="sqlite:FILE, or mysql://USER:PASSWORD@HOST:PORT (mariadb://, tidb://), without the password that "
        "in MYSQL_PWD; the destination holds the position, too, a server under ?name=",
    )
    print: bool = Field(False, description="every event as a line of JSON, and apply nothing")
    skip_handle_only: bool = Field(
        False,
        description="leave out rows whose messages have the handle key alone, with a warning for each, in place of "
        "stopping",
    )
    once: bool = Field(False, description="stop at the end that the topics have")

    @model_validator(mode="after")
    def _check_destination(self) -> Self:
        if bool(self.to) == self.print:
            raise ValueError("exactly one of -to and -print must be given")
        return self


PROGRAM: Final = Program(
    "kafka-consumer",
    Arguments,
    flags_of(Arguments),
    words=("uri",),
    about="Applies row changes and DDLs from Kafka to a database, exactly once, or prints them. It may be killed at "
    "any time: the next run goes on where the destination stands.",
    exit_codes={
        0: "after a signal, or at the end of the topics with --once",
        1: "bad settings",
        2: "a failure or a bad command line",
    },
    examples=(
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=open-protocol' --to sqlite:shop.db",
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=simple' --topic '^shop_' --to sqlite:shop.db --once",
        "kafka-consumer 'kafka://127.0.0.1:9092/shop?protocol=simple' --print",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = load_or_exit(PROGRAM, argv)
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        log.setup("info", "")
        address = kafka_address(arguments.uri, "kafka-consumer", {})
        topics = arguments.topic or [address.topic]
        if arguments.print:
            print_events(address, topics, _write, stop, once=arguments.once)
            return 0
        skips = arguments.skip_handle_only
        consumer = Consumer(address, topics=topics, stop=stop, once=arguments.once, skips_handle_only=skips)
        consume(consumer, _destination(arguments.to, address.options))
    except BinlogError as error:
        _log.error("kafka-consumer failed", kind=type(error).__name__, error=str(error))
        return 1 if isinstance(error, ConfigError) else 2
    except BrokenPipeError:  # `kafka-consumer … --print | head`
        discard_stdout()
    return 0


def _write(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


def _destination(text: str, options: ProtocolOptions) -> Destination:
    to = consumer_replayer(text, zone=options.time_zone)
    if not text.startswith("sqlite:") and PROTOCOLS[options.protocol] not in _FOR_SERVERS:
        raise ConfigError(
            f"--to: messages of {options.protocol} do not hold values as a server takes them; those of open-protocol, "
            "canal-json and simple do"
        )
    return Destination(to)


if __name__ == "__main__":
    sys.exit(main())
