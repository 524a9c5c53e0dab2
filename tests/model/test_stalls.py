"""A partition that cannot go on has a reason within `WITHIN_S`, with the broker's own error; one that recovers loses it.

What keeps it from copying here is either a rule that is taken out of the product (`tests.model.mutants`), so that the loop is
the one that the rule prevents, or an answer that a broker gives again and again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import PartitionReport
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_replicator.copy.resume import resumer, source_truncation
from tests.model import admin_answers
from tests.model.catalogue import SCENARIOS
from tests.model.chooser import Seeded
from tests.model.mutants import MUTANTS
from tests.model.options import Options
from tests.model.scenarios import Scenario, copied, first
from tests.model.wire import FETCH
from tests.model.world import World

WITHIN_S = (
    40.0  # flow.stall.STALLED_AFTER_S, a look each second, and what happens before the partition stands still
)
QUESTIONS_MAX = 150  # in that time: 3 a second, and those before the back-off begins
KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR = 56, -1

Script = Callable[[World], Awaitable[None]]


def play(script: Script, options: Options, *, seed: int = 1, heals: bool = True) -> None:
    """Run *script*, which asserts; with *heals*, the promise has to hold in the end."""
    world = World(Seeded(seed), options)
    judgement = world.play(script, quiet_after_s=120.0 if heals else 0.1)
    assert not heals or judgement.problems == []


async def stalled(world: World) -> PartitionReport:
    """The report of the first partition as soon as it is said to stand still."""
    found: list[PartitionReport] = []

    def is_said() -> bool:
        reports = [copier.reports()[first(world)] for copier in world.alive if copier.task is not None]
        found[:] = [report for report in reports if report.is_stalled or report.reason]
        return bool(found)

    assert await world.until(is_said, timeout_s=WITHIN_S, every_s=0.25), "nothing is said"
    return found[0]


def questions(world: World) -> int:
    """How often the target was asked about the first partition so far."""
    task = world.copiers[0].task
    assert task is not None
    return task.lanes[first(world)].doubts


@dataclass(slots=True)
class Watch:
    """Plays a scenario, and looks at each partition until one has a reason."""

    scenario: Scenario
    said: PartitionReport | None = None
    after_s: float = 0.0  # since it had last moved
    _moved: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)

    async def play(self, world: World) -> None:
        """The script of a world; fails where a partition stands still for `WITHIN_S` and says nothing."""
        playing = asyncio.ensure_future(self.scenario.play(world))
        while self.said is None and not (playing.done() and copied(world)):
            await world.sleep(0.25)
            for copier in world.alive:
                for at, report in copier.reports().items():
                    self._look(world.clock.now, at, report)
        playing.cancel()

    def _look(self, now_s: float, at: TopicPartition, report: PartitionReport) -> None:
        offset, since_s = self._moved.get(at, (-2, now_s))
        if report.source_offset != offset or report.source_offset == report.source_end_offset:
            self._moved[at] = (report.source_offset, now_s)
        elif report.is_stalled:
            self.said, self.after_s = report, now_s - since_s
        assert now_s - since_s <= WITHIN_S, f"{at} says nothing"


@pytest.mark.parametrize(
    ("name", "error", "advice"),
    [
        (
            "a_partition_leaves_without_a_commit",
            "OUT_OF_ORDER_SEQUENCE_NUMBER (45: ",
            "let another broker lead",
        ),
        (
            "batches_are_merged_by_their_compressed_size",
            "MESSAGE_TOO_LARGE (10: after recompression)",
            "compare compression.type and max.message.bytes",
        ),
    ],
)
def test_a_livelock_that_a_rule_prevents_would_be_a_reason(name: str, error: str, advice: str):
    """Points 1 and 2 of issue 13, as they were before they were mended: refused again and again, with all brokers well."""
    mutant = next(one for one in MUTANTS if one.name == name)
    scenario = SCENARIOS[mutant.scenarios[0]]
    watch = Watch(scenario)
    with mutant.in_place():
        for seed in mutant.seeds:
            chooser = Seeded(seed)
            World(chooser, scenario.options(chooser.random)).play(watch.play, quiet_after_s=0.1)
            if watch.said is not None:
                break
            watch = Watch(scenario)

    assert watch.said is not None, f"{mutant.seeds} do not show it"
    assert watch.said.reason == "WritesRefused"
    assert "cluster west refused " in watch.said.message
    assert error in watch.said.message
    assert advice in watch.said.message
    assert STALLED_AFTER_S - 1 <= watch.after_s <= WITHIN_S


async def copy_and_rewrite_the_source(world: World, *, is_stopped: bool = False) -> None:
    """A first copy, and then a source whose log was rewritten below what was copied."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    world.start()
    assert await world.until(lambda: copied(world))
    if is_stopped:
        await world.stop(world.copiers[0])
    world.producer.truncate(at, 30)
    world.producer.append(at, 120, **KB_BATCH)


def refusing_epochs(code: int) -> Callable[..., Any]:
    """The source's answers to OffsetForLeaderEpoch: *code* for each partition."""

    def answer(_: int, __: int, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            parts = [
                SimpleNamespace(partition=one.partition, leader_epoch=-1, end_offset=-1, error_code=code)
                for one in topic.partitions
            ]
            topics.append(SimpleNamespace(topic=topic.topic, partitions=parts))
        return SimpleNamespace(topics=topics)

    return answer


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [
        (KAFKA_STORAGE_ERROR, "KAFKA_STORAGE_ERROR", "SourceNotAnswering"),
        (UNKNOWN_SERVER_ERROR, "UNKNOWN_SERVER_ERROR", "BrokerError"),
    ],
)
def test_a_source_that_does_not_report_where_an_epoch_ended_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, code: int, name: str, reason: str
):
    """Its log was rewritten; nothing is copied from it before it is known since where. The loss policy then applies."""

    async def script(world: World) -> None:
        monkeypatch.setattr(world.source, "_OffsetForLeaderEpoch", refusing_epochs(code), raising=False)
        await copy_and_rewrite_the_source(world)
        before = questions(world)
        said = await stalled(world)
        assert said.reason == reason
        assert name in said.message
        assert "OffsetForLeaderEpoch" in said.message
        assert questions(world) - before < QUESTIONS_MAX
        monkeypatch.undo()
        assert await world.until(lambda: world.copiers[0].reports()[first(world)].reason == "SourceDataLost")

    play(script, Options())


def test_an_old_source_is_not_copied_before_it_is_known_where_an_epoch_ended(monkeypatch: pytest.MonkeyPatch):
    """A fetch before Kafka 2.7 serves the records that replaced others (KIP-595)."""
    monkeypatch.setitem(admin_answers.VERSIONS, FETCH, (4, 11))

    async def script(world: World) -> None:
        await copy_and_rewrite_the_source(world, is_stopped=True)
        refusing = refusing_epochs(KAFKA_STORAGE_ERROR)
        monkeypatch.setattr(world.source, "_OffsetForLeaderEpoch", refusing, raising=False)
        world.restart(world.copiers[0])
        await world.sleep(5.0)
        monkeypatch.undo()
        assert await world.until(lambda: world.copiers[-1].reports()[first(world)].reason == "SourceDataLost")

    play(script, Options())


def test_a_source_that_rejects_our_epoch_again_and_again_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    """Nothing that was asked shows why: the questions come slower and slower, and the partition says so."""

    async def nothing(*_: Any) -> Any:
        return source_truncation.EpochAnswers({}, {})

    monkeypatch.setattr(resumer, "truncations", nothing)

    async def script(world: World) -> None:
        await copy_and_rewrite_the_source(world)
        before = questions(world)
        said = await stalled(world)
        assert said.reason == "NoDecision"
        assert "cluster east" in said.message
        assert questions(world) - before < QUESTIONS_MAX

    play(script, Options(), heals=False)


async def copy_and_leave_an_entry(world: World, *, is_stopped: bool) -> None:
    """A first copy, and a leader that remembers the first number as one of a transaction that it refused (KIP-890)."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    world.start()
    assert await world.until(lambda: copied(world))
    await world.sleep(6.0)
    if is_stopped:
        await world.stop(world.copiers[0])
    producers = world.copy_of(at).producers
    (producer_id, entry), *_ = producers.producers.items()
    producers.start_verification(producer_id, 0, entry.epoch, world.wall_ms)


def revoke(world: World) -> None:
    world.target.may_use_transactional_ids = False


def expire(world: World) -> None:
    world.target.coordinator.expiration_ms = 0
    world.target.coordinator.expire(world.wall_ms)


@pytest.mark.parametrize("lose_transactional_id", [revoke, expire])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_entry_of_a_transactional_id_that_is_lost_holds_up_nothing(
    lose_transactional_id: Callable[[World], None],
    is_stopped: bool,  # noqa: FBT001 pytest's
):
    """Only a commit makes it forget that, or a day: the flow continues in another generation."""

    async def script(world: World) -> None:
        await copy_and_leave_an_entry(world, is_stopped=is_stopped)
        lose_transactional_id(world)
        world.producer.append(first(world), 60, **KB_BATCH)
        if is_stopped:
            world.restart(world.copiers[0])
        assert await world.until(lambda: copied(world), timeout_s=WITHIN_S)
        assert world.copiers[-1].generation == 2

    play(script, Options())
