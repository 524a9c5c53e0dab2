"""A connector's positions in REST's terms: what is shown, what may be altered, and under which key it is written."""

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


def written(command: AlterOffsets | ResetOffsets) -> dict[bytes, bytes | None]:
    """What *command* writes where one partition has a position of an owner, and another connector has one as well."""
    found: dict[bytes, bytes | None] = {}

    async def append(records: Any, *, now_ms: int) -> None:
        assert now_ms > 0
        found.update(records)

    changes = OffsetChanges(CONNECTOR, WORKER)
    changes._log = SimpleNamespace(append=append)  # type: ignore[assignment]  # what is used of it
    for key in (STORED_KEY, encode_key(PositionKey("other", "east", "orders", 1))):
        changes._take(Record(0, 0, key, b'{"offset":7,"mirrorflow.writer.form":"plain"}'))
    asyncio.run(changes.change(command))
    return found


def test_an_altered_offset_has_javas_field_alone() -> None:
    """The next owner of the flow obeys it: what was stored beside the former one does not hold for it."""
    assert written(AlterOffsets(name="flow", offsets=((STORED_PARTITION, {"offset": 3}),))) == {
        STORED_KEY: b'{"offset":3}'
    }


def test_a_reset_deletes_the_offsets_of_its_connector_alone() -> None:
    assert written(ResetOffsets(name="flow")) == {STORED_KEY: None}


SOURCE = "MirrorSourceConnector"
CHECKPOINT = "MirrorCheckpointConnector"
HEARTBEAT = "MirrorHeartbeatConnector"
KEY = encode_key(PositionKey("a", "A", "orders", 0))
OURS = encode_value(Position(topic="orders", partition=0, source_offset=7, source_epoch=7))
PARTITION = {"topic": "orders", "partition": 0, "cluster": "A"}


def alter(*pairs):
    return AlterOffsets(name="a", offsets=pairs)


def test_only_javas_field_is_shown_and_nothing_of_what_is_none():
    """What Java takes for no position is none here too."""
    records = {
        KEY: OURS,
        b'["a",{"cluster":"A","partition":1,"topic":"orders"}]': b'{"offset":-1}',
        b'["a",{"other":1}]': b'{"position":{"x":1}}',
    }

    assert [
        {"partition": {"cluster": "A", "partition": 0, "topic": "orders"}, "offset": {"offset": 7}},
        {"partition": {"other": 1}, "offset": {"position": {"x": 1}}},
    ] == listed(records)


def test_keys_are_those_that_java_looks_up():
    """Whatever the order in the request; and a key that is there already keeps its bytes."""
    odd = b'["a", {"topic":"orders","partition":0,"cluster":"A"}]'

    assert {KEY: b'{"offset":3}'} == changed(alter((PARTITION, {"offset": 3})), SOURCE, {})
    assert {KEY: None} == changed(alter((PARTITION, None)), SOURCE, {KEY: OURS})
    assert {odd: None} == changed(alter((PARTITION, None)), SOURCE, {odd: OURS})
    group = {"group": "g", "topic": "A.orders", "partition": 2}
    assert {b'["a",{"partition":2,"topic":"A.orders","group":"g"}]': b'{"offset":0}'} == changed(
        alter((group, {"offset": 0})), CHECKPOINT, {}
    )
    aliases = {"targetClusterAlias": "B", "sourceClusterAlias": "A"}
    assert {b'["a",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]': b'{"offset":0}'} == changed(
        alter((aliases, {"offset": 0}), (None, None)), HEARTBEAT, {}
    )


def test_a_reset_takes_all_away():
    """Undecodable keys too, which may also be removed one by one."""
    assert {KEY: None, b"x": None} == changed(ResetOffsets(name="a"), SOURCE, {KEY: OURS, b"x": b"?"})
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
def test_what_mm2_would_not_take_is_refused_in_its_words(connector, partition, offset, message):
    """And then nothing of the request is written, as in Java."""
    with pytest.raises(ConnectError) as caught:
        changed(alter((PARTITION, None), (partition, offset)), connector, {})

    assert (500, message) == (caught.value.status, str(caught.value))


@pytest.mark.parametrize("key", [None, b"", b"x", b"[]", b'["a"]', b"[1,{}]", b'["a",[]]', b"[" * 9999])
def test_keys_of_others_are_passed_over(key):
    """The offsets topic may hold anything."""
    assert connector_of(key) is None


def test_the_connector_of_a_key():
    """The first of two."""
    assert "a" == connector_of(KEY)
