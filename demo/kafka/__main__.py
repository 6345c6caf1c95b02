"""`python -m demo.kafka`: the shop of `python -m demo`, whose changes two drainers write to Kafka: one in Open Protocol
into the partitions of one topic, one in Avro with a schema registry and a topic for each table. In the end both are
read back, their order is proven, and the tables that they make are compared with what the shop wrote.

Exit code 0 when all of it holds, 1 if not.
"""

from __future__ import annotations

import sys

from demo.command import main
from demo.kafka.run import run
from demo.kafka.screen import KafkaScreen

if __name__ == "__main__":
    sys.exit(main(run, KafkaScreen, prog="python -m demo.kafka", about=__doc__, seconds=30.0, rate=150.0))
