"""What can go wrong between decoding and applying."""

from __future__ import annotations

from binlog.errors import BinlogError


class KeyCollision(BinlogError):
    """Two live rows under one fold key: upstream does not enforce the key (it is being dropped), or tells rows apart
    that the key's collation does not (rule 12). The keys of this table in this slot have to be applied in order:
    `place` is (table id, slot), for FoldBuilder.slots."""

    def __init__(
        self, schema: str, table: str, key_columns: tuple[str, ...], *, place: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(
            f"`{schema}`.`{table}`: two live rows have one key ({', '.join(key_columns)}); its changes must be "
            "applied in their order"
        )
        self.schema = schema
        self.table = table
        self.place = place


class BlobError(BinlogError):
    """A slot's blob is of another version or damaged."""
