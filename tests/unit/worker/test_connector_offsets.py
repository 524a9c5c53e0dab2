"""Offsets of a connector are listed, altered and reset in the REST API, with the keys of their records."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key, encode_value
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.partitions import Position
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.http.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.worker.connector_offsets import OffsetChanges, changed, connector_of, listed

CONNECTOR = {
    "name": "flow",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "east:9092",
    "target.cluster.bootstrap.servers": "west:9092",
}
WORKER = {"bootstrap.servers": "west:9092", "offset.storage.topic": "offsets"}
STORED_KEY = encode_key(PositionKey("flow", "east", "orders", 0))
STORED_PARTITION = {"topic": "orders", "partition": 0, "cluster": "east"}


def written_records(command: AlterOffsets | ResetOffsets) -> dict[bytes, bytes | None]:
    """Returns the records that *command* writes. This connector and another one have one stored offset each."""
    records_written: dict[bytes, bytes | None] = {}

    async def append(records: Any, *, now_ms: int) -> None:
        assert now_ms > 0
        records_written.update(records)

    changes = OffsetChanges(CONNECTOR, WORKER)
    changes._log = SimpleNamespace(append=append)  # type: ignore[assignment]  # the only method in use
    for key in (STORED_KEY, encode_key(PositionKey("other", "east", "orders", 1))):
        changes._take(Record(0, 0, key, b'{"offset":7,"mirrorflow.writer.form":"plain"}'))
    asyncio.run(changes.change(command))
    return records_written


def test_an_altered_offset_keeps_only_the_offset_field() -> None:
    """MirrorFlow's own fields describe the previous offset. Without them the next owner uses the altered offset."""
    assert written_records(AlterOffsets(name="flow", offsets=((STORED_PARTITION, {"offset": 3}),))) == {
        STORED_KEY: b'{"offset":3}'
    }


def test_a_reset_deletes_only_the_offsets_of_its_connector() -> None:
    assert written_records(ResetOffsets(name="flow")) == {STORED_KEY: None}


SOURCE = "MirrorSourceConnector"
CHECKPOINT = "MirrorCheckpointConnector"
HEARTBEAT = "MirrorHeartbeatConnector"
KEY = encode_key(PositionKey("a", "A", "orders", 0))
VALUE = encode_value(Position(topic="orders", partition=0, source_offset=7, source_epoch=7))
PARTITION = {"topic": "orders", "partition": 0, "cluster": "A"}


def alter(*pairs):
    return AlterOffsets(name="a", offsets=pairs)


def test_only_the_offset_field_is_listed_and_negative_offsets_are_not():
    """Java ignores a negative offset too."""
    records = {
        KEY: VALUE,
        b'["a",{"cluster":"A","partition":1,"topic":"orders"}]': b'{"offset":-1}',
        b'["a",{"other":1}]': b'{"position":{"x":1}}',
    }

    assert [
        {"partition": {"cluster": "A", "partition": 0, "topic": "orders"}, "offset": {"offset": 7}},
        {"partition": {"other": 1}, "offset": {"position": {"x": 1}}},
    ] == listed(records)


def test_keys_have_the_field_order_of_java_unless_they_exist():
    """The order in the request does not matter. An existing key keeps its bytes."""
    existing_key = b'["a", {"topic":"orders","partition":0,"cluster":"A"}]'

    assert {KEY: b'{"offset":3}'} == changed(alter((PARTITION, {"offset": 3})), SOURCE, {})
    assert {KEY: None} == changed(alter((PARTITION, None)), SOURCE, {KEY: VALUE})
    assert {existing_key: None} == changed(alter((PARTITION, None)), SOURCE, {existing_key: VALUE})
    group = {"group": "g", "topic": "A.orders", "partition": 2}
    assert {b'["a",{"partition":2,"topic":"A.orders","group":"g"}]': b'{"offset":0}'} == changed(
        alter((group, {"offset": 0})), CHECKPOINT, {}
    )
    aliases = {"targetClusterAlias": "B", "sourceClusterAlias": "A"}
    assert {b'["a",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]': b'{"offset":0}'} == changed(
        alter((aliases, {"offset": 0}), (None, None)), HEARTBEAT, {}
    )


def test_a_reset_deletes_undecodable_keys_too():
    """They can also be deleted one by one."""
    assert {KEY: None, b"x": None} == changed(ResetOffsets(name="a"), SOURCE, {KEY: VALUE, b"x": b"?"})
    assert {b'["a",{"rubbish":true}]': None} == changed(alter(({"rubbish": True}, None)), SOURCE, {})


SHOWN = "{topic=orders, partition=0, cluster=A}"


@pytest.mark.parametrize(
    ("connector", "partition", "offset", "message"),
    [
        (SOURCE, None, {"offset": 1}, "Source partitions may not be null"),
        (SOURCE, {"cluster": "A"}, {"offset": 1}, "Source partition {cluster=A} is missing the 'topic' key, which is required"),
        (SOURCE, {**PARTITION, "topic": 5}, {"offset": 1}, "Source partition {topic=5, partition=0, cluster=A} has an invalid value 5 for the 'topic' key, which must be a string"),
        (SOURCE, {**PARTITION, "partition": "x"}, {"offset": 1}, "Source partition {topic=orders, partition=x, cluster=A} has an invalid value x for the 'partition' key, which must be an integer"),
        (SOURCE, {**PARTITION, "partition": -1}, {"offset": 1}, "Source partition {topic=orders, partition=-1, cluster=A} has an invalid value -1 for the 'partition' key, which cannot be negative"),
        (SOURCE, PARTITION, {}, f"Source offset {{}} for source partition {SHOWN} is missing the 'offset' key, which is required"),
        (SOURCE, PARTITION, {"offset": None}, f"Source offset {{offset=null}} for source partition {SHOWN} has an invalid value null for the 'offset' key, which must be an integer"),
        (SOURCE, PARTITION, {"offset": "5"}, f"Source offset {{offset=5}} for source partition {SHOWN} has an invalid value 5 for the 'offset' key, which must be an integer"),
        (SOURCE, PARTITION, {"offset": -1}, f"Source offset {{offset=-1}} for source partition {SHOWN} has an invalid value -1 for the 'offset' key, which cannot be negative"),
        (CHECKPOINT, {"group": "g", "topic": "t", "partition": 0}, {"offset": 1}, "Source offset {offset=1} for source partition {group=g, topic=t, partition=0} has an invalid value 1 for the 'offset' key; the only accepted value is 0"),
    ],
)  # fmt: skip
def test_an_invalid_offset_is_refused_with_the_message_of_java(connector, partition, offset, message):
    """As in Java, nothing of the request is written."""
    with pytest.raises(ConnectError) as caught:
        changed(alter((PARTITION, None), (partition, offset)), connector, {})

    assert (500, message) == (caught.value.status, str(caught.value))


@pytest.mark.parametrize("key", [None, b"", b"x", b"[]", b'["a"]', b"[1,{}]", b'["a",[]]', b"[" * 9999])
def test_foreign_keys_belong_to_no_connector(key):
    """Any program may write to the offsets topic."""
    assert connector_of(key) is None


def test_the_connector_name_is_the_first_part_of_a_key():
    assert "a" == connector_of(KEY)
