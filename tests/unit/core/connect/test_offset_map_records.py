"""Offset maps have the documented bytes and are decoded as encoded. Damaged ones are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.mirror_records import decode_map, decode_map_key, encode_map, encode_map_key
from mirrorflow_core.offsets.offset_map import FIRST_EPOCH, RUNS_MAX, UNKNOWN, MapStream, OffsetMap, Run
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import primitives

OFFSETS = st.integers(0, 2**40)


@st.composite
def maps(draw):
    runs, upstream, downstream = [], draw(OFFSETS), draw(OFFSETS)
    for _ in range(draw(st.integers(1, 20))):
        upstream, downstream = upstream + draw(OFFSETS), downstream + draw(OFFSETS)
        lengths = draw(OFFSETS), draw(OFFSETS)
        records = draw(st.integers(UNKNOWN, min(lengths)))
        runs.append(Run(upstream, downstream, upstream + lengths[0], downstream + lengths[1], records))
        upstream, downstream = runs[-1][2:4]
    stream = MapStream(draw(st.integers(1, 99)), draw(st.text(max_size=9)), draw(st.text(max_size=9)))
    return OffsetMap(
        stream=stream,
        ordinal=draw(OFFSETS),
        upstream_end=upstream + draw(OFFSETS),
        runs=tuple(runs),
        leader_epoch=draw(st.integers(0, 2**31 - 1)),
    )


@given(maps())
def test_a_map_is_decoded_as_encoded(offset_map):
    assert decode_map(encode_map(offset_map)) == offset_map


@given(st.text(max_size=20), st.integers(0, 2**31 - 1))
def test_a_map_key_is_decoded_as_encoded(topic, partition):
    topic_partition = TopicPartition(topic, partition)

    assert decode_map_key(encode_map_key(topic_partition)) == topic_partition


def test_the_bytes_are_as_documented():
    offset_map = OffsetMap(
        stream=MapStream(1, "a", "b"),
        ordinal=150,
        upstream_end=152,
        runs=(Run(0, 7, 100, 107, 100), Run(101, 107, 151, 157, 50)),
        leader_epoch=5,
    )

    assert encode_map_key(TopicPartition("foo", 3)).hex() == "0003666f6f00000003"
    parts = "0000 000161 000162 02 ac02 b002 04 00 0e c801 c801 c801 02 00 64 64 64 0a"
    assert encode_map(offset_map).hex() == parts.replace(" ", "")


@given(maps(), st.data())
def test_a_truncated_map_is_refused(offset_map, data):
    value = encode_map(offset_map)
    without_epoch = len(value) - len(primitives.encode_varint(offset_map.leader_epoch))
    with pytest.raises(ValueError, match=r"\w"):
        decode_map(value[: data.draw(st.integers(0, without_epoch - 1))])


@given(maps())
def test_a_map_without_an_epoch_has_the_first_epoch(offset_map):
    value = encode_map(offset_map).removesuffix(primitives.encode_varint(offset_map.leader_epoch))

    assert decode_map(value) == replace(offset_map, leader_epoch=FIRST_EPOCH)


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_decoded_to_a_possible_map(value):
    """Random bytes may be a valid map by chance."""
    for data in (value, b"\0\0" + value):
        try:
            offset_map = decode_map(data)
        except ValueError:
            continue
        assert all(run.is_possible for run in offset_map.runs)


@pytest.mark.parametrize(
    "runs",
    [
        (Run(0, 0, 10, 10, 11),),
        (Run(0, 0, 10, 10, 10), Run(9, 10, 12, 12, 1)),
        (Run(0, 0, 10, 10, 10), Run(10, 9, 12, 12, 1)),
        (Run(0, 0, 10, 10, -2),),
        (),
    ],
    ids=["more records than offsets", "overlap upstream", "overlap downstream", "negative count", "no runs"],
)
def test_an_impossible_map_is_refused(runs):
    end = max((run.upstream_end for run in runs), default=0)
    offset_map = OffsetMap(stream=MapStream(1, "", ""), ordinal=0, upstream_end=end, runs=runs)
    with pytest.raises(ValueError, match="runs"):
        decode_map(encode_map(offset_map))


def test_a_later_map_version_and_a_tombstone_are_refused():
    for value in (b"\0\1\0\0", b"", None):
        with pytest.raises(ValueError, match=r"version|early|null"):
            decode_map(value)


def test_the_maximum_number_of_runs_fits_into_a_small_record():
    runs = tuple(
        Run(11_000 * index, 10_000 * index, 11_000 * index + 10_000, 10_000 * index + 10_000, 10_000)
        for index in range(RUNS_MAX)
    )
    offset_map = OffsetMap(stream=MapStream(1, "x" * 22, "y" * 22), ordinal=0, upstream_end=2**40, runs=runs)

    assert len(encode_map(offset_map)) < 4_096
