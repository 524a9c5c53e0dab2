"""Leader epochs show where a source with unclean elections differs from the copied records."""

import random
from itertools import takewhile
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.source_epochs import (
    EPOCHS_MAX,
    EpochStart,
    SourceEpochs,
    decode_epochs,
    encode_epochs,
    followed_by,
    up_to,
)
from mirrorflow_core.writer.broker_requests import LeaderEpochEnd, ReadEpochEnd
from mirrorflow_core.writer.partition_start import end_in_source

ORDERS = TopicPartition("orders", 0)
REPLICAS = 3


class Appended(NamedTuple):
    epoch: int
    number: int


class Source:
    """A partition whose replicas may lag behind the leader. Each of them may become the next leader."""

    def __init__(self) -> None:
        self.logs: list[list[Appended]] = [[] for _ in range(REPLICAS)]
        self.leader = self.epoch = self.epoch_start = self.number = 0

    @property
    def log(self) -> list[Appended]:
        return self.logs[self.leader]

    def append(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.log.append(Appended(self.epoch, self.number))

    def follow(self, replica: int, count: int) -> None:
        own = common_length(self.logs[replica], self.log)
        self.logs[replica] = self.log[: own + count]

    def elect(self, replica: int) -> None:
        self.leader, self.epoch = replica, self.epoch + 1
        self.epoch_start = len(self.log)

    def epoch_end(self, epoch: int) -> LeaderEpochEnd:
        """As in LeaderEpochFileCache.endOffsetFor."""
        starts = {self.epoch: self.epoch_start}
        for offset, record in reversed(list(enumerate(self.log))):
            starts[record.epoch] = offset
        if epoch == self.epoch:
            return LeaderEpochEnd(epoch, len(self.log))
        higher = min((start for start in starts if start > epoch), default=None)
        if higher is None:
            return LeaderEpochEnd(-1, -1)
        floor = max((start for start in starts if start <= epoch), default=epoch)
        return LeaderEpochEnd(floor, starts[higher])


def common_length(first: list[Appended], second: list[Appended]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


def read_epoch_end(source: Source, epochs: SourceEpochs) -> tuple[LeaderEpochEnd, bool]:
    steps: Any = end_in_source(ORDERS, epochs[-1].epoch, epochs)
    response = None
    try:
        while True:
            ((request,)) = steps.send(response)
            assert isinstance(request, ReadEpochEnd)
            response = (source.epoch_end(request.epoch),)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(300))
def test_copying_continues_where_the_source_begins_to_differ_from_the_copy(seed):
    rng = random.Random(seed)
    source, copied = Source(), list[Appended]()
    epochs: SourceEpochs = ()
    elections = 0
    for _ in range(80):
        step, replica = rng.choice(["append", "append", "follow", "elect", "copy"]), rng.randrange(REPLICAS)
        if step == "append":
            source.append(rng.randint(1, 3))
        elif step == "follow" and replica != source.leader:
            source.follow(replica, rng.randint(0, 4))
        elif step == "elect" and replica != source.leader and elections < EPOCHS_MAX - 1:
            source.elect(replica)
            elections += 1
        elif step == "copy":
            if epochs:
                epoch_end, has_epoch = read_epoch_end(source, epochs)
                end = min(epoch_end.end, len(copied))
                assert end == common_length(copied, source.log)
                del copied[end:]
                epochs = epochs if has_epoch else up_to(epochs, epoch_end.epoch, end)
            for record in source.log[len(copied) : len(copied) + rng.randint(1, 6)]:
                epochs = followed_by(epochs, record.epoch, len(copied))
                copied.append(record)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**40)), max_size=EPOCHS_MAX))
def test_epochs_are_decoded_as_encoded(pairs):
    epochs = tuple(EpochStart(*pair) for pair in pairs)

    assert decode_epochs(encode_epochs(epochs)) == epochs


def test_only_the_latest_epochs_are_kept():
    """The limit keeps positions small."""
    epochs: SourceEpochs = ()
    for epoch in range(20):
        epochs = followed_by(epochs, epoch, 10 * epoch)

    assert [start.epoch for start in epochs] == list(range(20 - EPOCHS_MAX, 20))
