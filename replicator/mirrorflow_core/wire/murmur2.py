"""Chooses the partition of a key as Java's producer does: murmur2 with Java's seed.

Compacted topics that Java reads, such as Connect's offsets topic, require the same partition: compaction
keeps one record per key and partition. Source: Utils.murmur2, BuiltInPartitioner.
"""

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash as an unsigned 32-bit integer (the same bits as Java's signed one)."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, count: int) -> int:
    """Return the partition that Java's default partitioner chooses for *key* among *count* partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count
