"""Partitions that make no progress are found, reported once, and forgotten when they copy again; idle ones are not checked."""

import asyncio
import contextlib
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effects, EndSession, Signal
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import (
    CorruptBatchError,
    MirrorFlowError,
    NotAuthorizedError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_core.wire.error_codes import CORRUPT_MESSAGE, NOT_ENOUGH_REPLICAS
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_kafka.admin.log_requests import ActiveProducer, ProducersAnswer
from mirrorflow_kafka.client.broker_writer import REQUEST_TIMEOUT_MS
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy import stall_watch
from mirrorflow_replicator.copy.partition_reports import partition_report as report_at
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_replicator.copy.stall_watch import (
    DESCRIBE_AGAIN_S,
    DESCRIBED_AFTER_S,
    DESCRIBED_MAX,
    JUDGE_AGAIN_S,
    LIMITED_S,
    LOGGED_MAX,
    LOOK_S,
    RESYNCED_S,
    StallWatch,
)
from tests.unit.core.copying.stubs import begun_copier, new_session, resume, send, want_transaction
from tests.unit.core.copying.test_batch_packer import WHEN, small
from tests.unit.core.wire.strategies import batch_of

PARTITIONS = 200


def partition_report(copier):
    return report_at(copier, WHEN)


class Task:
    """The collaborators of a watch: clusters whose partitions all have leaders, and a clock that the test turns."""

    def __init__(self):
        self.now_s = 1000.0
        self.pace = RateLimiter(None)
        self.unled: set[PartitionCopier] = set()
        self.changes: list[PartitionCopier] = []
        self.dispatches: dict[PartitionCopier, Any] = {}
        self.session = new_session(partitions=PARTITIONS)
        routes: Any = SimpleNamespace(without_leader=self.unled, dispatch_of=self.dispatches.get)
        self.watch = StallWatch(
            source=self._cluster("east"),
            target=self._cluster("west"),
            routes=routes,
            pace=self.pace,
            is_crowded=lambda: False,
            on_change=self.changes.append,
        )
        self.watch.look(self.now_s)

    @staticmethod
    def _cluster(alias) -> Any:
        cluster = SimpleNamespace(alias=alias, leader=lambda *_: 1)
        cluster.raise_for = lambda *error: Cluster.raise_for(cluster, *error)  # type: ignore[arg-type]
        return cluster

    def copier(self, number=0, session: CopySession | None = None) -> PartitionCopier:
        """A copier that copies from source offset 100 on, where the source ends."""
        copier = begun_copier(WHEN, session or self.session, number)
        copier.note_end(100)
        self.watch.changed(copier)
        return copier

    def behind(self, number=0) -> PartitionCopier:
        """A copier that has a batch to copy."""
        copier = self.copier(number)
        self.fetch(copier)
        return copier

    def serve(self, copier, *, reader=None, connection=None):
        """Connects *copier* to its brokers."""
        self.dispatches[copier] = SimpleNamespace(reader=reader, connection=connection)

    def apply(self, copier, effects: Effects):
        """What the shell does about effects that the watch depends on."""
        if Signal.REPORT in effects:
            self.watch.changed(copier)

    def fetch(self, copier, count=3):
        """The source sends its next *count* records, which are the last ones."""
        end = copier.cursor.offset + count
        answered(self, copier, stable=end, end=end, records=count)

    def resume(self, copier):
        """Lets a copier continue that has nothing in flight; it must not end its session."""
        effects = resume(copier, WHEN)
        assert not any(isinstance(effect, EndSession) for effect in effects)
        self.apply(copier, effects)

    def reconnect(self, copier):
        """There is a new connection to the target's leader."""
        self.apply(copier, copier.connected())
        self.resume(copier)

    def refuse(self, copier, code=NOT_ENOUGH_REPLICAS):
        """One round of a livelock: sent, refused, and resumed at the same place."""
        assert send(copier, WHEN) is not None
        self.apply(copier, copier.refused(code, ""))
        self.resume(copier)
        self.fetch(copier)

    def copy(self, copier):
        """The target acknowledges the next batch."""
        assert send(copier, WHEN) is not None
        self.apply(copier, copier.acknowledged(max(0, copier.stream.expected_target), -1, WHEN))

    def wait(self, seconds=STALLED_AFTER_S + 2 * LOOK_S, *, each=lambda: None):
        """Look each second for so long; *each* happens before every look."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            each()
            self.watch.look(self.now_s)


class Reader:
    """What is known of a reader of ten partitions."""

    partition_bytes = 1 << 20

    def __init__(self, *, node_id=1, held_until_s=-math.inf):
        self.node_id, self.held_until_s, self.responses = node_id, held_until_s, 0

    def __len__(self):
        return 10

    def changed(self, *_):
        """It reads nothing here."""


async def hold(pace, *, reader):
    """Let *reader* begin to wait for a rate that allows nothing."""
    pace.limit(1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await pace.spend(1 << 30, reader=reader)


def answered(task, copier, *, stable, end, records=0):
    """A fetch response with *records*; nothing can be read after *stable*."""
    data = bytes(batch_of(small(records), base_offset=copier.cursor.offset).data) if records else b""
    response = PartitionFetchResponse(
        FetchKey(b"orders", copier.partition), 0, end, stable, 0, (), -1, memoryview(bytearray(data))
    )
    task.apply(copier, copier.fetched(response, copier.cursor.offset))


@pytest.fixture
def task() -> Task:
    return Task()


def test_writes_that_are_refused_for_30_s_are_a_stall(task):
    copier = task.behind()

    task.wait(STALLED_AFTER_S - 1, each=lambda: task.refuse(copier))
    before = copier.stalled
    task.wait(2, each=lambda: task.refuse(copier))

    report = partition_report(copier)
    assert before is None
    assert (report.phase, report.reason, report.is_stalled) == (PartitionPhase.COPYING, "WritesRefused", True)
    assert "cluster west refused 30 writes, the last with NOT_ENOUGH_REPLICAS" in report.message
    assert task.changes == [copier]


def test_a_stall_ends_with_the_first_acknowledged_batch(task):
    copier = task.behind()
    task.wait(each=lambda: task.refuse(copier))

    task.copy(copier)
    task.wait(1)

    report = partition_report(copier)
    assert (report.reason, report.message, report.is_stalled) == ("", "", False)
    assert task.changes == [copier, copier]


def test_an_idle_partition_is_not_checked_and_never_stalls(task):
    copiers = [task.copier(number) for number in range(100)]

    task.wait(1)
    looked_at = len(task.watch)
    task.wait(100)

    assert looked_at == 0
    assert [copier for copier in copiers if copier.stalled] == []


def test_a_partition_that_copies_never_stalls(task):
    copier = task.behind()

    def copy():
        task.copy(copier)
        task.fetch(copier)

    task.wait(60, each=copy)

    assert copier.stalled is None


def test_a_source_that_has_records_and_sends_none_is_a_stall(task):
    copier = task.copier()
    copier.note_end(200)

    task.wait()

    assert partition_report(copier).reason == "SourceNotAnswering"


def test_a_batch_without_a_response_is_a_stall(task):
    copier = task.behind()
    assert send(copier, WHEN) is not None

    task.wait()

    assert partition_report(copier).reason == "TargetNotAnswering"


def test_a_rate_limit_is_not_a_stall(task):
    copier = task.copier()
    copier.note_end(200)
    task.serve(copier, reader=Reader(node_id=3))
    asyncio.run(hold(task.pace, reader=3))

    task.wait()

    assert copier.stalled is None


def test_a_rate_limit_of_another_broker_does_not_hide_a_silent_source(task):
    copier = task.copier()
    copier.note_end(200)
    task.serve(copier, reader=Reader(node_id=3))
    asyncio.run(hold(task.pace, reader=1))

    task.wait()

    assert partition_report(copier).reason == "SourceNotAnswering"


@pytest.mark.parametrize(("responses", "reason"), [(0, ""), (1, "SourceNotAnswering")])
def test_a_limit_hides_a_silent_source_until_all_others_had_their_turn(task, responses, reason):
    """The reader of ten partitions is given records each second, or hardly ever."""
    copier = task.copier()
    copier.note_end(200)
    reader = Reader(held_until_s=math.inf)
    task.serve(copier, reader=reader)

    def serve():
        reader.responses += responses

    task.wait(each=serve)

    assert partition_report(copier).reason == reason


def test_a_quota_is_not_a_stall(task):
    copier = task.behind()
    task.serve(copier, connection=SimpleNamespace(held_until_s=math.inf))
    assert send(copier, WHEN) is not None

    task.wait()

    assert copier.stalled is None


def test_a_limit_of_reads_does_not_hide_a_silent_target(task):
    """What was sent is answered, or its connection is lost, within the time of a request."""
    copier = task.behind()
    connection = SimpleNamespace(held_until_s=-math.inf)
    task.serve(copier, reader=Reader(held_until_s=math.inf), connection=connection)
    assert send(copier, WHEN) is not None

    task.wait()

    assert partition_report(copier).reason == "TargetNotAnswering"


def test_a_quota_explains_a_silent_target_as_long_as_a_request_may_take():
    assert LIMITED_S == REQUEST_TIMEOUT_MS / 1000


def test_a_commit_that_does_not_come_is_a_stall(task):
    """Also where nothing more is to be copied: readers of committed records do not see what was."""
    copier = task.copier()
    want_transaction(copier, WHEN)
    copier.joined(copier.resyncs, is_full=False)
    task.copy(copier)
    copier.held()

    task.wait(STALLED_AFTER_S + 3 * LOOK_S)

    assert partition_report(copier).reason == "CommitPending"


def test_a_partition_without_a_leader_is_a_stall_though_it_seemed_idle(task):
    copier = task.copier()
    task.wait(1)
    task.unled.add(copier)

    task.wait()

    assert copier.stalled is not None


def test_an_error_that_heals_and_comes_again_keeps_its_reason(task):
    copier = task.behind()
    error = UnreachableError(cluster="west", addresses="b:9092", problem="refused")

    def fail():
        task.apply(copier, copier.note(error))
        task.reconnect(copier)
        task.fetch(copier)

    task.wait(each=fail)

    report = partition_report(copier)
    assert copier.error is None
    assert (report.reason, report.is_stalled) == ("Unreachable", True)
    assert "Cluster west cannot be reached at b:9092" in report.message


def test_connections_that_break_again_and_again_are_a_stall(task):
    """Nothing is refused, and the target answers each request."""
    copier = task.behind()

    def connect():
        task.reconnect(copier)
        task.fetch(copier)

    task.wait(each=connect)

    assert partition_report(copier).reason == "NoDecision"


def wait_for_the_next_session(task, copier):
    """Its session must end, and does not while connections break again and again."""
    task.apply(copier, copier.connected())
    assert any(isinstance(effect, EndSession) for effect in resume(copier, WHEN))


def test_responses_that_are_lost_are_a_stall_while_the_session_does_not_end(task):
    """Nothing is refused, and the target answers each request."""
    copier = task.behind()
    assert send(copier, WHEN) is not None
    task.apply(copier, copier.response_lost())

    task.wait(each=lambda: wait_for_the_next_session(task, copier))

    assert partition_report(copier).reason == "NoDecision"


def test_a_partition_at_its_end_that_is_asked_about_again_and_again_is_a_stall(task):
    """It never reads, so the end that it knows may be old."""
    copier = task.copier()
    task.wait(1)

    task.wait(each=lambda: task.reconnect(copier))

    assert partition_report(copier).reason == "NoDecision"


def test_a_partition_is_idle_soon_after_a_resync(task):
    copier = task.copier()
    task.reconnect(copier)

    task.wait(RESYNCED_S + 2 * LOOK_S)

    assert len(task.watch) == 0


def test_pauses_of_the_process_are_no_loop(task):
    """A busy machine stops each process for a second or two, many times."""
    copier = task.copier()
    task.reconnect(copier)

    def pause():
        task.apply(copier, copier.paused())
        task.watch.paused()
        task.resume(copier)

    task.wait(each=pause)

    assert copier.stalled is None


def test_batches_that_are_acknowledged_and_do_not_count_are_a_stall(task):
    """The leader acknowledges the second one as written, where the first one, which it refused, should be."""
    copier = task.copier()
    copier.single_in_flight = False
    for _ in range(2):
        task.fetch(copier)
        assert send(copier, WHEN) is not None
    task.apply(copier, copier.refused(NOT_ENOUGH_REPLICAS, ""))
    copier.note_obstacle(None)  # the refusal explains the stall only for a while
    task.apply(copier, copier.acknowledged(0, -1, WHEN))

    task.wait(each=lambda: wait_for_the_next_session(task, copier))

    assert copier.records == 0
    assert partition_report(copier).reason == "NoDecision"


def test_a_stopped_partition_is_not_a_stall(task):
    copier = task.behind()
    task.wait(each=lambda: task.refuse(copier))

    error = CorruptBatchError(topic="orders", partition=0, offset=100, problem="its checksum does not hold")
    task.apply(copier, copier.stop(error))
    task.wait()

    report = partition_report(copier)
    assert (report.phase, report.reason, report.is_stalled) == (PartitionPhase.STOPPED, "CorruptBatch", False)


def test_a_process_that_was_frozen_finds_no_stall_when_it_runs_again(task):
    copier = task.behind()
    assert send(copier, WHEN) is not None
    task.wait(10)

    task.now_s += 3600
    task.watch.look(task.now_s)

    assert copier.stalled is None


def test_a_stall_is_logged_once_and_again_when_it_comes_again(task, caplog):
    caplog.set_level(logging.WARNING)
    copier = task.behind()

    task.wait(100, each=lambda: task.refuse(copier))
    once = len(caplog.messages)
    task.copy(copier)
    task.fetch(copier)
    task.wait(100, each=lambda: task.refuse(copier))

    assert (once, len(caplog.messages)) == (1, 2)


def test_a_sentence_does_not_change_with_each_refusal(task):
    """A tool that prints each change would print it every second."""
    copier = task.behind()
    task.wait(each=lambda: task.refuse(copier))
    first = partition_report(copier)

    task.wait(20, each=lambda: task.refuse(copier))

    assert partition_report(copier).message == first.message
    assert task.changes == [copier]


def test_another_cause_is_reported(task):
    copier = task.behind()
    task.wait(each=lambda: task.refuse(copier))
    first = partition_report(copier)

    task.wait(JUDGE_AGAIN_S, each=lambda: task.refuse(copier, CORRUPT_MESSAGE))

    report = partition_report(copier)
    assert "CORRUPT_MESSAGE" in report.message
    assert report.stalled_since_ms == first.stalled_since_ms


def test_thousands_of_stalls_take_a_few_lines_of_log(task, caplog):
    caplog.set_level(logging.WARNING)
    for number in range(PARTITIONS):
        send(task.behind(number), WHEN)

    task.wait()

    assert len(caplog.messages) == LOGGED_MAX + 1
    assert caplog.messages[-1] == "195 more partitions are stalled: TargetNotAnswering."


def test_a_partition_that_is_given_up_is_forgotten(task):
    copier = task.behind()
    task.wait(each=lambda: task.refuse(copier))

    task.apply(copier, copier.leave())
    task.watch.forget(copier)
    task.wait()

    assert (copier.stalled, len(task.watch)) == (None, 0)


STABLE = 100  # where copiers of `held` wait


def held(task, number=0, *, stable=STABLE, end=140):
    """A copier of committed records whose source has an open transaction from *stable* on."""
    session = new_session(read_committed=True, partitions=PARTITIONS)
    copier = task.copier(number, session)
    answered(task, copier, stable=stable, end=end)
    return copier


class Leaders:
    """The source's leaders; `asked` has the partitions of each request about their producers."""

    def __init__(self, monkeypatch, *, error=0, failure: MirrorFlowError | None = None):
        self.asked: list[int] = []
        self.errors: list[str] = []
        self._error, self._failure = error, failure
        monkeypatch.setattr(stall_watch, "describe_producers", self._describe)

    async def _describe(self, _, partitions):
        self.asked.append(len(partitions))
        if self._failure is not None:
            raise self._failure
        none = {"last_sequence": 0, "coordinator_epoch": 0, "epoch": 0, "last_timestamp": -1}
        open_ = ActiveProducer(producer_id=4000, current_txn_start_offset=STABLE, **none)
        later = ActiveProducer(producer_id=4001, current_txn_start_offset=STABLE + 5, **none)
        idle = ActiveProducer(producer_id=4002, current_txn_start_offset=-1, **none)
        answer = ProducersAnswer(error=self._error, producers=(idle, later, open_))
        return dict.fromkeys(partitions, answer)

    def ask(self, task):
        asyncio.run(task.watch._describe(lambda error: self.errors.append(error.reason)))


def test_an_open_transaction_of_the_source_is_a_stall_with_its_producer(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held(task)

    task.wait(each=lambda: leaders.ask(task))

    report = partition_report(copier)
    assert (report.reason, report.is_stalled) == ("OpenTransaction", True)
    assert "producer 4000 (epoch 0) of cluster east" in report.message
    assert (report.source_offset, report.source_end_offset) == (STABLE, 140)
    assert (leaders.asked, task.changes) == ([1], [copier])


def test_what_an_open_transaction_hides_is_no_lag_before_it_is_a_stall(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held(task)

    task.wait(DESCRIBED_AFTER_S - 1, each=lambda: leaders.ask(task))

    report = partition_report(copier)
    assert (report.reason, report.source_end_offset) == ("", STABLE)
    assert leaders.asked == []


def test_transactions_that_end_in_time_are_no_stall(task):
    """Each is open for 20 s, and another one is open then."""
    copier = held(task)

    for offset in range(STABLE, STABLE + 30, 10):
        task.wait(20)
        answered(task, copier, stable=offset + 10, end=offset + 50, records=10)
        task.copy(copier)

    assert copier.stalled is None


def test_the_stall_ends_with_the_transaction(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held(task)
    task.wait(each=lambda: leaders.ask(task))

    answered(task, copier, stable=STABLE + 10, end=STABLE + 10, records=10)
    task.copy(copier)
    task.wait(2)

    report = partition_report(copier)
    assert (report.reason, report.source_end_offset, len(task.watch)) == ("", STABLE + 10, 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"error": 29}, "NotAuthorized"),
        (
            {"failure": UnsupportedBrokerError(cluster="east", feature="DescribeProducers", needs="2.8")},
            "UnsupportedBroker",
        ),
        ({"failure": NotAuthorizedError(cluster="east", operation="x", resource="y")}, "NotAuthorized"),
    ],
)
def test_an_open_transaction_is_a_stall_although_its_producer_is_refused(task, monkeypatch, answer, error):
    """It is asked for again from time to time, and the refusal is reported."""
    leaders, copier = Leaders(monkeypatch, **answer), held(task)

    task.wait(DESCRIBED_AFTER_S + DESCRIBE_AGAIN_S + 3, each=lambda: leaders.ask(task))

    report = partition_report(copier)
    assert (report.reason, leaders.asked, leaders.errors) == ("OpenTransaction", [1, 1], [error, error])
    assert "a transaction of cluster east is open from offset 100 on" in report.message


def test_many_open_transactions_are_described_in_parts(task, monkeypatch):
    leaders = Leaders(monkeypatch)
    copiers = [held(task, number) for number in range(DESCRIBED_MAX + 50)]

    task.wait(each=lambda: leaders.ask(task))

    assert leaders.asked == [DESCRIBED_MAX, 50]
    assert all("producer 4000 " in partition_report(copier).message for copier in copiers)
