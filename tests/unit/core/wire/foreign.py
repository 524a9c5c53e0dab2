"""kafka-python's record code, an independent implementation for comparison."""

import warnings
from collections.abc import Sequence

from mirrorflow_core.wire.records import Record

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its resources in an old way
    from kafka.partitioner.default import murmur2
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder
    from kafka.record.util import encode_varint

__all__ = ["DefaultRecordBatch", "LegacyRecordBatchBuilder", "encode_varint", "foreign_batch", "murmur2"]


def foreign_batch(records: Sequence[Record], *, codec: int = 0) -> bytearray:
    """The bytes of *records* as kafka-python encodes them."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for i, record in enumerate(records):
        headers = [(name.decode(), value) for name, value in record.headers]
        builder.append(
            offset=i, timestamp=record.timestamp, key=record.key, value=record.value, headers=headers
        )
    return bytearray(builder.build())
