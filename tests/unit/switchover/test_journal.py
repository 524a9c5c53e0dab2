"""Records of other programs in the journal's topic, and the size of journal records of large clusters."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverRecord
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover import journal as journal_module
from mirrorflow_replicator.switchover.errors import SwitchoverError, SwitchoverTakenError
from mirrorflow_replicator.switchover.journal import RECORD_BYTES_MAX, ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import FenceKind
from mirrorflow_replicator.switchover.readiness import PARTITION_BYTES, TOPIC_BYTES

MESSAGE_MAX_BYTES = 1_048_588  # Kafka's default
LED = b'{"to":"west","number":1}'  # the note of where clients are led


def promoting(topics: int) -> SwitchoverRecord:
    """Returns the largest record of a switchover of so many topics: it has a seal, and the starts of the reverse flow."""
    chance = random.Random(1)
    names = sorted(f"team-{chance.randrange(200)}.orders-{number}" for number in range(topics))

    def new_id() -> str:
        return str(uuid.UUID(int=chance.getrandbits(128)))

    seals = [
        PartitionSeal(
            topic=name,
            partition=0,
            topic_id=new_id(),
            end=end,
            last_stable=end,
            copied=end - chance.randrange(1000),
            records=1_000,
            digest=f"{chance.getrandbits(64):016x}",
        )
        for name in names
        for end in [chance.randrange(10**9)]
    ]
    return SwitchoverRecord(
        id="one",
        pair="p",
        type=SwitchoverType.PLANNED,
        source="east",
        to="west",
        created_ms=0,
        state=SwitchoverState.PROMOTING,
        seal=Seal(pair="p", switchover="one", epoch=1, attempt=1, partitions=tuple(seals)),
        reverse_starts=tuple(
            ReverseStart(topic=name, partition=0, topic_id=new_id(), offset=chance.randrange(10**9))
            for name in names
        ),
    )


def write(record: SwitchoverRecord, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Writes *record*, and returns the sizes of the batches that were sent."""
    sizes: list[int] = []

    async def produce(
        _: Cluster, batches: dict[TopicPartition, bytearray], **__: Any
    ) -> dict[TopicPartition, int]:
        sizes.extend(map(len, batches.values()))
        return dict.fromkeys(batches, 0)

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    for name in ("add_partitions_to_txn", "end_txn"):
        monkeypatch.setattr(admin, name, nothing)
    monkeypatch.setattr(admin, "produce", produce)
    journal = ClusterJournal(cast("Any", create_autospec(Cluster, instance=True, alias="west")), "p")
    journal._producer, journal._is_held = (1, 1), True
    asyncio.run(journal.write_record(record))
    return sizes


def test_the_largest_record_of_ten_thousand_topics_fits_into_one_batch(monkeypatch: pytest.MonkeyPatch):
    (size,) = write(promoting(10_000), monkeypatch)
    assert size < MESSAGE_MAX_BYTES


def test_a_record_that_exceeds_a_batch_raises_a_switchover_error(monkeypatch: pytest.MonkeyPatch):
    """A different class of error would end the process while writes are refused.

    The check of the flows refuses so many topics earlier.
    """
    assert (
        14_000 * (TOPIC_BYTES + PARTITION_BYTES)
        > RECORD_BYTES_MAX
        >= 10_000 * (TOPIC_BYTES + PARTITION_BYTES)
    )
    with pytest.raises(SwitchoverError, match="more than"):
        write(promoting(14_000), monkeypatch)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"hello", b"x"),
        (b'"hello"', b"x"),
        (b"\xff", b"x"),
        (b'{"pair":1}', b"x"),
        (b'{"pair":"p","note":1}', b"{}"),
        (b'{"pair":"p","note":"runner"}', b"x"),
        (b'{"pair":"p","switchover":"one"}', b"x"),
        (b'{"pair":"p","switchover":"one"}', b'{"state":"Done"}'),
        (b'{"pair":"p"}', b'{"format":1}'),
        (b'{"pair":"p","note":"endpoint"}', b"{}"),
        (b'{"pair":"p","note":"endpoint"}', b'{"to":"west"}'),
        (b'{"pair":"p","note":"endpoint"}', b'{"to":1,"number":2}'),
        (b'{"pair":"p","note":"fence:east"}', b"{}"),
        (b'{"pair":"p","note":"fence:east"}', b'{"state":"none","method":"DenyAcl","acls":[]}'),
        (b'{"pair":"p","note":"fence:east"}', b'{"state":"absent","method":"DenyAcl","acls":[{}]}'),
        (b'{"pair":"p","note":"starts:east"}', b'{"starts":[{"topic":"orders"}]}'),
    ],
    ids=[
        "text",
        "json-text",
        "no-unicode",
        "pair-number",
        "note-number",
        "note-value",
        "record-value",
        "no-format",
        "no-switchover",
        "endpoint-empty",
        "endpoint-no-number",
        "endpoint-no-text",
        "fence-empty",
        "fence-state",
        "fence-acl",
        "start",
    ],
)
def test_a_record_of_another_program_is_skipped_and_logged(
    key: bytes, value: bytes, caplog: pytest.LogCaptureFixture
):
    """It must not end a process while writes are refused, and is no sign of another process that holds the lock."""

    class ReadLog:
        async def read_new(self) -> AsyncIterator[Record]:
            yield Record(7, 0, key, value)
            yield Record(8, 0, b'{"pair":"p","note":"endpoint"}', LED)

    journal = ClusterJournal(cast("Any", create_autospec(Cluster, instance=True, alias="west")), "p")
    journal._log = cast("Any", ReadLog())
    journal._attempted.add((b'{"pair":"p","note":"endpoint"}', LED))

    with caplog.at_level(logging.WARNING):
        asyncio.run(journal.read())

    assert {"endpoint": {"to": "west", "number": 1}} == journal.notes
    assert not journal._is_foreign
    assert ["record at offset 7 of" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    "value", [b'{"format":2}', b'{"format":1,"state":"Paused"}'], ids=["format", "state"]
)
def test_a_record_of_a_newer_version_is_not_skipped(value: bytes):
    """It may be of a switchover that is under way."""

    class ReadLog:
        async def read_new(self) -> AsyncIterator[Record]:
            yield Record(7, 0, b'{"pair":"p","switchover":"one"}', value)

    journal = ClusterJournal(cast("Any", create_autospec(Cluster, instance=True, alias="west")), "p")
    journal._log = cast("Any", ReadLog())

    with pytest.raises(SwitchoverError):
        asyncio.run(journal.read())


class FrozenCopy:
    """A journal whose process is frozen while it waits for the response to its first note; another process then takes the lock."""

    alias = "west"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, frozen_s: float) -> None:
        self.written = 0
        self._frozen_s, self._now_s = frozen_s, 0.0
        # Only the clock that includes the time that the machine sleeps.
        clock = SimpleNamespace(clock_gettime=lambda _: self._now_s, time_ns=time.time_ns)
        monkeypatch.setattr(journal_module, "time", clock)

    async def write_note(self, _name: str, _value: object) -> None:
        if self._now_s > 8.0:
            raise SwitchoverTakenError(pair="p")
        self.written += 1
        self._now_s += self._frozen_s


@pytest.mark.parametrize("is_fence", [True, False], ids=["fence", "confirmation"])
def test_a_process_that_was_frozen_while_it_took_a_note_acts_on_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_fence: bool
):
    """Its note was committed before. The ACLs that it would create are of no fence, and no process would delete them."""

    async def write(journal: SwitchoverJournal) -> None:
        if is_fence:
            await journal.write_fence("west", FenceState.PARTIAL, method=FenceKind.DENY_ACL)
        else:
            await journal.confirm("west")

    for frozen_s, is_taken in ((20.0, True), (4.0, False), (0.01, False)):
        copy = FrozenCopy(monkeypatch, frozen_s)
        if is_taken:
            with pytest.raises(SwitchoverTakenError):
                asyncio.run(write(SwitchoverJournal([cast("Any", copy)])))
        else:
            asyncio.run(write(SwitchoverJournal([cast("Any", copy)])))
        assert (2 if frozen_s == 4.0 else 1) == copy.written
