"""Reads a partition's log from its files on a broker's disk, including records that clients can no longer read."""

from collections.abc import Iterator
from typing import NamedTuple

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, decode
from tests.harness.kafka.broker import Broker


class LoggedRecord(NamedTuple):
    """A record in the log of a partition, with the epoch of the leader that appended it."""

    leader_epoch: int
    record: Record


def logged_records(broker: Broker, topic: str, partition: int) -> Iterator[LoggedRecord]:
    """Yields all records of a partition on *broker*, including those of aborted transactions.

    The broker need not run.
    """
    for segment in sorted((broker.folder / "data" / f"{topic}-{partition}").glob("*.log")):
        for batch in split(bytearray(segment.read_bytes())):
            if not batch.is_control:
                yield from (LoggedRecord(batch.leader_epoch, record) for record in decode(batch))
