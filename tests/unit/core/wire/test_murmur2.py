"""Keys are assigned to the same partitions as in Java."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.records import murmur2, partition_for
from tests.unit.core.wire import foreign


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_equal_those_of_javas_test(key, hashed):
    """The values are those of Kafka's UtilsTest.testMurmur2."""
    assert hashed % 2**32 == murmur2(key)


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', 16),
        (b'["MirrorCheckpointConnector",{"partition":0,"topic":"A.foo","group":"g1"}]', 18),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]', 0),
    ],
)
def test_position_keys_are_in_the_partitions_that_connect_reads(key, partition):
    """The keys are those of an offsets topic with 25 partitions."""
    assert partition == partition_for(key, 25)


@given(st.binary(max_size=50))
def test_the_hash_equals_that_of_kafka_python(key):
    assert foreign.murmur2(key) % 2**32 == murmur2(key)
