"""Messages of a worker arrive at a task unchanged, however the pipe splits them."""

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


def heard(pieces):
    """Every message of a pipe that brings *pieces* and then ends."""

    async def listen():
        stream = asyncio.StreamReader()

        async def speak():
            for piece in pieces:
                stream.feed_data(piece)
                await asyncio.sleep(0)
            stream.feed_eof()

        speaking = asyncio.create_task(speak())
        found = []
        while (message := await read(stream)) is not None:
            found.append(message)
        await speaking
        return found

    return asyncio.run(listen())


@pytest.mark.parametrize("size", [1 << 20, 4096, 999])
def test_messages_arrive_in_order_however_they_are_cut(size):
    """Thousands of partitions are more than a pipe holds at once."""
    said: list[Message] = [
        ASSIGN,
        replace(ASSIGN, assignment=replace(MANY, initial=False, partitions=())),
        Stop(),
    ]
    data = b"".join(map(encode, said))

    assert said == heard([data[at : at + size] for at in range(0, len(data), size)])


@pytest.mark.parametrize("kept", [0, 3, 4, 100])
def test_a_worker_that_dies_in_the_middle_has_said_nothing(kept):
    """Half an assignment is none: the task ends with its worker."""
    assert [Stop()] == heard([encode(Stop()), encode(ASSIGN)[:kept]])
