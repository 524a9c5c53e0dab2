"""The lines that `mirrorflow dump` prints. Integration tests check that it finds the topics."""

import json

import pytest

from mirrorflow_cli.commands.dump import _line
from mirrorflow_cli.internal_records import TOPICS, DumpTopic, _read_position, _read_switchover, decoded
from mirrorflow_core.connect.mirror_records import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint_key,
    encode_checkpoint_value,
    encode_map,
    encode_map_key,
)
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, Run
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.switchover.record import encode_record
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_core.wire.records import Record
from mirrorflow_operator.plan.properties import Plan
from tests.unit.cli.commands.test_switchover import record
from tests.unit.connectors.flow_settings import settings

FLOW = Plan(flow="f", connectors=())
CLIENT = ClientSettings(alias="west", client_id="c", properties={})
CHECKPOINT = Checkpoint(group="a b", topic="A.foo", partition=3, upstream_offset=100, downstream_offset=205)
POSITION = (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', b'{"offset":123}')


def checkpoint_record(value: bytes | None = None) -> Record:
    return Record(
        7, 1_700_000_000_000, encode_checkpoint_key(CHECKPOINT), value or encode_checkpoint_value(CHECKPOINT)
    )


def dump_topic(read) -> DumpTopic:
    return DumpTopic(client=CLIENT, name="A.checkpoints.internal", read=read)


def fields(key: bytes | None, value: bytes | None) -> dict[str, object]:
    checkpoint = decode_checkpoint(key, value)
    return {"group": checkpoint.group, "topic": checkpoint.topic, "metadata": checkpoint.metadata}


def test_a_line_shows_offset_timestamp_and_fields():
    """A value with a space is quoted."""
    assert 'A.checkpoints.internal-0@7 2023-11-14T22:13:20.000Z group="a b" topic=A.foo metadata=""' == _line(
        dump_topic(fields), 0, checkpoint_record(), as_json=False
    )


def test_json_line_is_one_object():
    assert {
        "cluster": "west",
        "topic": "A.checkpoints.internal",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "record": {"group": "a b", "topic": "A.foo", "metadata": ""},
    } == json.loads(_line(dump_topic(fields), 0, checkpoint_record(), as_json=True))


def test_undecodable_record_is_marked_unreadable_without_its_content():
    line = _line(dump_topic(fields), 0, checkpoint_record(b"\0\1secret"), as_json=False)
    assert "unreadable=" in line
    assert "secret" not in line


def test_stored_offsets_and_resets_are_shown_unchanged():
    fields = {"connector": "MirrorSourceConnector", "cluster": "A", "partition": 0, "topic": "foo"}
    assert {**fields, "position": {"offset": 123}} == _read_position(*POSITION)
    assert {**fields, "position": None} == _read_position(POSITION[0], None)


@pytest.mark.parametrize("key", [None, b"{}", b"[1,2,3]", b"[1,2]", b"null"])
def test_a_key_of_an_unexpected_form_is_unreadable(key: bytes | None):
    with pytest.raises(ValueError):  # noqa: PT011 json's own, too
        _read_position(key, b"{}")


def test_offset_maps_and_stored_offsets_show_only_the_newest_by_default():
    """These topics contain days of superseded records. The other topics are shown completely."""
    kinds = {name: kind(FLOW, settings()) for name, kind in TOPICS.items()}

    assert {"offset-map", "positions"} == {name for name, topic in kinds.items() if topic.newest_only}


def test_offset_syncs_need_no_checkpoint_connector():
    """The source connector writes them. A flow from flags has no checkpoint connector."""
    topic = TOPICS["offset-syncs"](FLOW, settings())

    assert "mm2-offset-syncs.west.internal" == topic.name
    assert "east" == topic.client.alias


def test_each_internal_topic_of_a_flow_has_a_name_and_a_cluster():
    names = {kind: topic(FLOW, settings()).name for kind, topic in TOPICS.items()}

    assert names["claims"] == "mm2-claims.east.internal"
    assert names["offset-map"] == "mm2-offset-map.east.internal"
    assert names["heartbeats"] == "east.heartbeats"
    assert len({*names.values()}) == len(TOPICS)


def test_an_offset_map_is_shown_with_its_end_offsets_and_runs():
    offset_map = OffsetMap(
        stream=MapStream(1, "", ""),
        ordinal=10,
        upstream_end=20,
        runs=(Run(10, 0, 20, 10, 10),),
        leader_epoch=3,
    )
    record = Record(0, 0, encode_map_key(TopicPartition("orders", 4)), encode_map(offset_map), ())
    fields = decoded(TOPICS["offset-map"](FLOW, settings()), record)

    assert fields["topic"] == "orders"
    assert (fields["upstream_end"], fields["downstream_end"], fields["runs"]) == (20, 10, 1)


def test_the_journal_of_switchovers_shows_states_and_notes():
    draining = record((SwitchoverState.CHECKING, 0), (SwitchoverState.FENCING, 5), reason="It lags.")

    shown = _read_switchover(*encode_record(draining))
    assert ("east-west", "east-west-1", "Fencing", "It lags.") == tuple(
        shown[name] for name in ("pair", "switchover", "state", "reason")
    )
    key = b'{"pair":"east-west","note":"fence:east"}'
    assert {"pair": "east-west", "note": "fence:east", "state": "partial", "acls": []} == _read_switchover(
        key, b'{"state":"partial","acls":[]}'
    )


@pytest.mark.parametrize("value", [b"7", b"{", b'{"format":99}', b'{"format":1}'])
def test_an_invalid_record_of_the_journal_is_unreadable(value: bytes):
    journal = DumpTopic(client=CLIENT, name="mm2-switchovers.internal", read=_read_switchover)
    broken = Record(7, 1_700_000_000_000, b'{"pair":"p","switchover":"s"}', value)

    assert "unreadable" in decoded(journal, broken)
