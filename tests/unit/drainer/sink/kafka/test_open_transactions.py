"""What an operator is told of open transactions."""

from __future__ import annotations

from drainer.sink.kafka.reader import open_transactions_text


def test_first_open_transaction_named_with_commands() -> None:
    text = open_transactions_text({("shop", 3): 17, ("shop", 4): 2, ("zoo", 0): 5}, "k1:9092")
    assert text.startswith("a transaction is open at offset 17 of shop-3, and others in 2 more partitions. ")
    assert "kafka-transactions.sh --bootstrap-server k1:9092 describe-producers --topic shop --partition 3" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic shop --partition 3 --start-offset 17" in text
