"""Writes produce requests and reads produce responses without copying records.

Uses version 8 (Kafka 2.4) instead of the newest: its non-flexible form is cheap to write by hand, it works
inside and outside of transactions, and every broker up to 4.x accepts it. The broker takes exactly one batch
per partition and request (ProduceRequest.validateRecords). Source: ProduceRequest.json, ProduceResponse.json.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirrorflow_core.wire.cursor import Cursor

API_KEY = 0
VERSION = 8
ACKS_ALL = -1
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">ii")
_SHORT = struct.Struct(">h")
# partition, error, base offset, append time, log start offset, number of record errors, length of the error
# message if there are no record errors
_ANSWER = struct.Struct(">ihqqqih")

Buffer = bytes | bytearray | memoryview
_new = tuple.__new__  # takes half the time of calling the class, several times per request


class Produced(NamedTuple):
    """The response for one partition: `base_offset` is the target offset of the first record.

    `base_offset` is -1 with an error. `append_time_ms` is the broker's time where the topic has
    LogAppendTime. Elsewhere it is -1 for a batch that was appended. For a duplicate it is the newest
    timestamp of the batch that the leader remembers with these sequence numbers (UnifiedLog.append,
    ProducerStateEntry.findDuplicateBatch).
    """

    error: int
    base_offset: int
    append_time_ms: int
    message: str
    refused_records: Sequence[int] = ()  # indexes in the batch, where the broker names them (KIP-467)


def produce_request(
    batches: Mapping[str, Sequence[tuple[int, Buffer]]],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Buffer]:
    """Return the consecutive parts of a request body.

    *batches* maps a topic to its (partition, batch) pairs and is not empty.
    """
    if transactional_id is None:
        head = struct.pack(">hhii", -1, ACKS_ALL, timeout_ms, len(batches))
    else:
        encoded = transactional_id.encode()
        head = (
            struct.pack(">h", len(encoded))
            + encoded
            + struct.pack(">hii", ACKS_ALL, timeout_ms, len(batches))
        )
    parts: list[Buffer] = []
    for topic, of_topic in batches.items():
        name = topic.encode()
        head += struct.pack(">h", len(name)) + name + _COUNT.pack(len(of_topic))
        for partition, batch in of_topic:
            parts += (head + _PARTITION.pack(partition, len(batch)), batch)
            head = b""
    return parts


def read_produced(body: memoryview) -> tuple[dict[tuple[str, int], Produced], int]:
    """Return the responses by topic and partition, and the broker's throttle time in milliseconds."""
    answers: dict[tuple[str, int], Produced] = {}
    topics, at = _COUNT.unpack_from(body)[0], 4
    for _ in range(topics):
        start = at + 2
        at = start + _SHORT.unpack_from(body, at)[0]
        topic = str(body[start:at], "utf-8")
        partitions = _COUNT.unpack_from(body, at)[0]
        at += 4
        for _ in range(partitions):
            partition, error, base_offset, append_time_ms, _, problems, message_bytes = _ANSWER.unpack_from(
                body, at
            )
            if problems == 0 and message_bytes <= 0:
                answers[topic, partition] = _new(Produced, (error, base_offset, append_time_ms, "", ()))
                at += _ANSWER.size
                continue
            # Rare case: record errors or an error message.
            cursor = Cursor(body, flexible=False)
            cursor.at = at + _ANSWER.size - 2
            said, refused = [], []
            for _ in range(problems):
                refused.append(cursor.int32())
                said.append(cursor.string())
            message = cursor.string() or next(filter(None, said), "")
            at = cursor.at
            answers[topic, partition] = Produced(error, base_offset, append_time_ms, message, tuple(refused))
    return answers, _COUNT.unpack_from(body, at)[0]
