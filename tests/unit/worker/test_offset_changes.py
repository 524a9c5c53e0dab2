"""Altered offsets are written in Java's bytes, under the keys that are there already."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mirrorflow_core.connect.position_keys import PositionKey, encode_key
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.http.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.worker.offset_changes import OffsetChanges

CONNECTOR = {
    "name": "flow",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "east:9092",
    "target.cluster.bootstrap.servers": "west:9092",
}
WORKER = {"bootstrap.servers": "west:9092", "offset.storage.topic": "offsets"}
KEY = encode_key(PositionKey("flow", "east", "orders", 0))
PARTITION = {"topic": "orders", "partition": 0, "cluster": "east"}


def written(command: AlterOffsets | ResetOffsets) -> dict[bytes, bytes | None]:
    """What *command* writes where one partition has a position of an owner, and another connector has one as well."""
    found: dict[bytes, bytes | None] = {}

    async def append(records: Any, *, now_ms: int) -> None:
        assert now_ms > 0
        found.update(records)

    changes = OffsetChanges(CONNECTOR, WORKER)
    changes._log = SimpleNamespace(append=append)  # type: ignore[assignment]  # what is used of it
    for key in (KEY, encode_key(PositionKey("other", "east", "orders", 1))):
        changes._take(Record(0, 0, key, b'{"offset":7,"mirrorflow.writer.form":"plain"}'))
    asyncio.run(changes.change(command))
    return found


def test_an_altered_offset_has_javas_field_alone() -> None:
    """The next owner of the flow obeys it: what was stored beside the former one does not hold for it."""
    assert written(AlterOffsets(name="flow", offsets=((PARTITION, {"offset": 3}),))) == {KEY: b'{"offset":3}'}


def test_a_reset_deletes_the_offsets_of_its_connector_alone() -> None:
    assert written(ResetOffsets(name="flow")) == {KEY: None}
