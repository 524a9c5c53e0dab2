"""A task receives the messages of its worker unchanged, regardless of how the pipe splits them."""

import asyncio
from dataclasses import replace

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_plan import SessionStart, TaskProducers
from mirrorflow_replicator.connectors.task_messages import (
    Assign,
    Message,
    Stop,
    TaskAssignment,
    encode,
    read,
)

MANY = TaskAssignment(
    partitions=tuple(TopicPartition(f"orders-{i}", i % 7) for i in range(5000)),
    initial=True,
)
PRODUCER = Producer("mirrorflow.a.task-0", 7, 1)
START = SessionStart(producers=TaskProducers(plain=PRODUCER, transactional=PRODUCER), points={}, problems={})
ASSIGN = Assign(assignment=MANY, start=START)


def received(pieces):
    """Returns every message of a pipe that delivers *pieces* and then ends."""

    async def receive():
        stream = asyncio.StreamReader()

        async def send():
            for piece in pieces:
                stream.feed_data(piece)
                await asyncio.sleep(0)
            stream.feed_eof()

        sending = asyncio.create_task(send())
        messages = []
        while (message := await read(stream)) is not None:
            messages.append(message)
        await sending
        return messages

    return asyncio.run(receive())


@pytest.mark.parametrize("size", [1 << 20, 4096, 999])
def test_messages_arrive_in_order_for_any_piece_size(size):
    """A message with thousands of partitions is larger than the buffer of a pipe."""
    messages: list[Message] = [
        ASSIGN,
        replace(ASSIGN, assignment=replace(MANY, initial=False, partitions=())),
        Stop(),
    ]
    data = b"".join(map(encode, messages))

    assert messages == received([data[start : start + size] for start in range(0, len(data), size)])


@pytest.mark.parametrize("kept", [0, 3, 4, 100])
def test_incomplete_last_message_is_ignored(kept):
    """The worker ended while it wrote the message."""
    assert [Stop()] == received([encode(Stop()), encode(ASSIGN)[:kept]])
