"""The lines of `mirrorflow dump`; that topics are found is the integration tests' business."""

import json

import pytest

from mirrorflow_cli.dump import _PLACES, DumpTopic, _line, _read_decision, _read_map, _read_position
from mirrorflow_core.connect.mirror_records import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint_key,
    encode_checkpoint_value,
)
from mirrorflow_core.connect.offset_map_records import encode_map, encode_map_key
from mirrorflow_core.exactly_once.identity import Anchor, encode
from mirrorflow_core.offsets.offset_map import UNKNOWN, MapStream, OffsetMap, Run
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.topics.topic_acls import AclBinding, encode_mark
from mirrorflow_core.wire.records import Record

CLIENT = ClientSettings(alias="west", client_id="c", properties={})
CHECKPOINT = Checkpoint(group="a b", topic="A.foo", partition=3, upstream_offset=100, downstream_offset=205)
POSITION = (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', b'{"offset":123}')


def checkpoint_record(value: bytes | None = None) -> Record:
    return Record(
        7, 1_700_000_000_000, encode_checkpoint_key(CHECKPOINT), value or encode_checkpoint_value(CHECKPOINT)
    )


def place(read) -> DumpTopic:
    return DumpTopic(client=CLIENT, topic="A.checkpoints.internal", read=read)


def fields(key: bytes | None, value: bytes | None) -> dict[str, object]:
    found = decode_checkpoint(key, value)
    return {"group": found.group, "topic": found.topic, "metadata": found.metadata}


def test_a_line_has_its_place_its_moment_and_its_fields():
    """What is more than a word is quoted."""
    assert 'A.checkpoints.internal-0@7 2023-11-14T22:13:20.000Z group="a b" topic=A.foo metadata=""' == _line(
        place(fields), 0, checkpoint_record(), as_json=False
    )


def test_json_has_all_of_it():
    """One object a line."""
    assert {
        "cluster": "west",
        "topic": "A.checkpoints.internal",
        "partition": 0,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "record": {"group": "a b", "topic": "A.foo", "metadata": ""},
    } == json.loads(_line(place(fields), 0, checkpoint_record(), as_json=True))


def test_what_cannot_be_read_says_so_and_is_not_shown():
    """Another version, or no checkpoint at all."""
    line = _line(place(fields), 0, checkpoint_record(b"\0\1secret"), as_json=False)
    assert "unreadable=" in line
    assert "secret" not in line


def test_positions_are_shown_as_they_stand_with_resets():
    """Also those of other connectors in the same topic."""
    wanted = {"connector": "MirrorSourceConnector", "cluster": "A", "partition": 0, "topic": "foo"}
    assert {**wanted, "position": {"offset": 123}} == _read_position(*POSITION)
    assert {**wanted, "position": None} == _read_position(POSITION[0], None)


@pytest.mark.parametrize("key", [None, b"{}", b"[1,2,3]", b"[1,2]", b"null"])
def test_a_key_that_is_none_is_unreadable(key: bytes | None):
    """Never a traceback."""
    with pytest.raises(ValueError):  # noqa: PT011 json's own, too
        _read_position(key, b"{}")


def test_decisions_are_told_by_kind():
    """Anchors, identities and the marks of ACLs share a topic."""
    anchor = Anchor(
        generation=1, topic="foo", partition=0, step=0, ordinal=0, source_offset=5, target_offset=0,
        source_topic_id="s", target_topic_id="t", why="begin",
    )  # fmt: skip
    found = _read_decision(*encode(anchor))
    assert ("anchor", "foo", 5) == (found["decision"], found["topic"], found["source_offset"])
    acl = AclBinding(
        resource_type=2, resource_name="A.foo", pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    assert {"decision": "acl", "ours": True, "acl": "Allow Read on topic A.foo for User:a"} == _read_decision(
        *encode_mark(acl, naming="default .", ours=True)
    )
    with pytest.raises(ValueError, match="no decision"):
        _read_decision(b"{}", b"{}")


def test_every_topic_of_a_flow_can_be_dumped():
    """The words of the command line."""
    names = ["checkpoints", "heartbeats", "identity", "offset-map", "offset-syncs", "positions"]
    assert names == sorted(_PLACES)


def test_a_map_shows_its_runs_and_leaves_out_counts_that_nobody_knows():
    known = OffsetMap(
        stream=MapStream(2, "a", "b"),
        ordinal=0,
        upstream_end=20,
        runs=(Run(0, 0, 10, 10, 10), Run(10, 10, 20, 30, UNKNOWN)),
    )
    read = _read_map(encode_map_key(TopicPartition("orders", 3)), encode_map(known))

    assert ("orders", 3, 2, 20) == tuple(
        read[key] for key in ("topic", "partition", "generation", "upstream_end")
    )
    assert [10, None] == [run.get("records") for run in read["runs"]]
