"""Messages that TiCDC 8.1 itself wrote, from the topics of tests/integration/test_peer_ticdc_topics.py: their keys are
empty, not null, and a row has its key where the protocol names it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from drainer.protocol.event import BootstrapEvent, Event, Image, RowEvent, key_of
from drainer.protocol.large import claimed_row
from drainer.protocol.registry import ProtocolOptions, make_decoder
from tests.unit.drainer.protocol.test_large import MemoryStore

CANAL = (
    '{"id":0,"database":"types","table":"p_gci","pkNames":%s,"isDdl":false,"type":"UPDATE","es":1795223912660,'
    '"ts":1795776117367,"sql":"","sqlType":{"k":12,"v":4},"mysqlType":{"k":"varchar","v":"int"},'
    '"old":[{"k":"ß","v":"4"}],"data":[{"k":"ß","v":"14"}],"_tidb":{"commitTs":470607177360343049}}'
)
DEBEZIUM = (
    '{"payload":{"source":{"version":"2.4.0.Final","connector":"TiCDC","name":"default","ts_ms":1795224995495,'
    '"snapshot":"false","db":"ks","table":"k_uknn","server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0,'
    '"query":null,"commit_ts":470607461219041293,"cluster_id":"default"},"ts_ms":1795777272572,"transaction":null,'
    '"op":"u","before":{"a":1,"b":"b","v":2},"after":{"a":1,"b":"b","v":3}}}'
)
SIMPLE = (
    '{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":1795777289606,"tableSchema":{"schema":"ks",'
    '"table":"k_uknn","tableID":106,"version":470607460051976212,"columns":[{"name":"a","dataType":{"mysqlType":"int",'
    '"charset":"binary","collate":"binary","length":11},"nullable":false,"default":null},{"name":"b","dataType":'
    '{"mysqlType":"varchar","charset":"utf8mb4","collate":"utf8mb4_bin","length":10},"nullable":false,"default":null},'
    '{"name":"v","dataType":{"mysqlType":"int","charset":"binary","collate":"binary","length":11},"nullable":true,'
    '"default":null}],"indexes":[%s]}}'
)
SIMPLE_ROW = (
    '{"version":1,"database":"ks","table":"k_uknn","tableID":106,"type":"UPDATE","commitTs":470607461219041293,'
    '"buildTs":1795777289606,"schemaVersion":470607460051976212,"data":{"a":"1","b":"b","v":"3"},'
    '"old":{"a":"1","b":"b","v":"2"}}'
)
CLAIMED = (
    '{"id":0,"database":"types","table":"t_text","pkNames":["id"],"isDdl":false,"type":"INSERT","es":1795223907460,'
    '"ts":1795777903240,"sql":"","sqlType":{"id":4},"mysqlType":{"id":"int"},"old":null,"data":[{"id":"3"}],'
    '"_tidb":{"commitTs":470607175997194242,"claimCheckLocation":'
    '"file:///claims/71e5797f-cb9c-44af-b71c-2b9e990040b7.json"}}'
)
UNIQUE = '{"name":"uab","unique":true,"primary":false,"nullable":false,"columns":["a","b"]}'
PRIMARY = '{"name":"PRIMARY","unique":true,"primary":true,"nullable":false,"columns":["v"]}'


@pytest.mark.parametrize(
    ("protocol", "messages", "key", "new"),
    [
        ("canal-json", [CANAL % '["k"]'], {"k": "ß"}, {"k": "ß", "v": 14}),
        ("canal-json", [CANAL % "[]"], None, {"k": "ß", "v": 14}),
        ("debezium", [DEBEZIUM], None, {"a": 1, "b": "b", "v": 3}),
        ("simple", [SIMPLE % UNIQUE, SIMPLE_ROW], {"a": 1, "b": "b"}, {"a": 1, "b": "b", "v": 3}),
        ("simple", [SIMPLE % f"{UNIQUE},{PRIMARY}", SIMPLE_ROW], {"v": 3}, {"a": 1, "b": "b", "v": 3}),
        ("simple", [SIMPLE % UNIQUE.replace("true", "false"), SIMPLE_ROW], None, {"a": 1, "b": "b", "v": 3}),
        (
            "simple",
            [SIMPLE % UNIQUE.replace('"nullable":false', '"nullable":true'), SIMPLE_ROW],
            None,
            {"a": 1, "b": "b", "v": 3},
        ),
    ],
)
def test_row_that_ticdc_wrote_has_its_key(
    protocol: str, messages: list[str], key: dict[str, object] | None, new: dict[str, object]
) -> None:
    decoder = make_decoder(ProtocolOptions(protocol))
    events: list[Event] = [event for text in messages for event in decoder.decode(b"", text.encode())]
    row = events.pop()
    assert isinstance(row, RowEvent)
    assert all(isinstance(event, BootstrapEvent) for event in events)
    assert (values(key_of(row)), values(row.new)) == (key, new)


def test_row_that_ticdc_stored_as_claim_is_read() -> None:
    """Canal-JSON's message has the handle key alone without saying so, and the claim's key is null."""
    decoder = make_decoder(ProtocolOptions("canal-json", enable_tidb_extension=True))
    (row,) = decoder.decode(b"", CLAIMED.encode())
    assert isinstance(row, RowEvent)
    assert (row.handle_only, row.claim.rpartition("/")[2]) == (True, "71e5797f-cb9c-44af-b71c-2b9e990040b7.json")
    whole = CLAIMED.replace('"data":[{"id":"3"}]', '"data":[{"id":"4"}]').partition(',"claimCheck')[0] + "}}"
    store = MemoryStore()
    store.put(row.claim.rpartition("/")[2], f'{{"key":null,"value":"{b64encode(whole.encode()).decode()}"}}'.encode())
    assert values(claimed_row(row, decoder, store).new) == {"id": 4}


def values(image: Image | None) -> dict[str, object] | None:
    return None if image is None else {name: column.value for name, column in image.items()}
