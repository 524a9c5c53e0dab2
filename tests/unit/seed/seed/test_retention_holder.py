"""Retention holds of seeds on the target: which process ends a hold, and when."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.retention_hold import LEASE_S
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.wire.error_codes import LEADER_NOT_AVAILABLE
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.configs import DescribedConfigs
from mirrorflow_kafka.client.metadata import Metadata
from mirrorflow_kafka.stores import identity_topic
from mirrorflow_kafka.stores.identity_topic import HoldLog
from mirrorflow_replicator.connectors import retention_writer
from mirrorflow_replicator.connectors.retention_writer import RetentionWriter
from mirrorflow_seed.errors import EXIT_DONE
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from mirrorflow_seed.seed.retention_holder import RetentionHolder
from mirrorflow_seed.seed.seed_driver import SeedJob
from mirrorflow_seed.seed.seed_plan import SeedLog, SeedRange
from mirrorflow_seed.seed.seed_progress import SeedProgress
from mirrorflow_seed.seed.task_messages import Coordinator
from mirrorflow_seed.settings import JobSettings
from tests.unit.connectors.flow_settings import settings

COPY = "east.orders"
WALL_MS = 1_800_000_000_000
RANGES = [SeedRange(index=0, topic="orders", partition=0, start=0, end=10, bytes=10_000)]


class TargetStub:
    """A target with one topic and an identity topic, and the monotonic clock of all processes."""

    metadata = Metadata(cluster_id=None, controller_id=-1, brokers={}, topics={})

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.retention: str | None = "5000"
        self.records: list[Record] = []
        self.refusal: NotAuthorizedError | None = None
        self.denied: set[str] = set()  # topics whose settings may not be read
        self.listed = SimpleNamespace(error=0, offset=-1)  # of the source: all records are old

    def log(self) -> HoldLog:
        """A new reader of the identity topic, as a new process has it."""
        target: Any = self
        log = HoldLog(target, "east", replication_factor=1)
        log._log = IdentityTopicReader(self)  # type: ignore[assignment]
        return log

    def connector(self, *, clock_error_ms: int = 0) -> RetentionWriter:
        target: Any = self
        return RetentionWriter(target, self.log(), now_ms=lambda: WALL_MS + clock_error_ms)

    def job(self) -> ClaimedFlow:
        cluster, owner = cast("Any", self), cast("Any", FlowOwnerStub())
        return ClaimedFlow(
            settings=settings(), source=cluster, target=cluster, hold_log=self.log(), group="", owner=owner
        )

    def leader(self, _topic: str, _partition: int) -> int:
        return 1

    async def refresh(self, _: object) -> None:
        """Does nothing: the metadata is always up to date."""

    async def append(self, _cluster: object, _topic: str, records: Sequence[Record]) -> None:
        self.records += records

    async def try_describe(self, cluster: object, topics: Collection[str]) -> DescribedConfigs:
        shown = await self.describe(cluster, [topic for topic in topics if topic not in self.denied])
        refused = (
            NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource=f"topic {topic}")
            for topic in self.denied
        )
        configs = {topic: tuple(entries) for topic, entries in shown.items()}
        return DescribedConfigs(configs, dict(zip(self.denied, refused, strict=True)))

    async def describe_all(self, cluster: object, topics: Collection[str]) -> Mapping[str, Any]:
        described = await self.try_describe(cluster, topics)
        for error in described.refused.values():
            raise error
        return described.configs

    async def describe(self, _cluster: object, topics: Collection[str]) -> dict[str, list[ConfigEntry]]:
        own, default = ConfigSource.TOPIC, ConfigSource.DEFAULT
        values = {
            "cleanup.policy": ("delete", default),
            "retention.ms": (self.retention or "7000", own if self.retention else default),
            "retention.bytes": ("-1", default),
        }
        entries = [
            ConfigEntry(name=name, value=value, source=source) for name, (value, source) in values.items()
        ]
        return dict.fromkeys(topics, entries)

    async def alter(
        self, _cluster: object, changes: Mapping[str, Collection[ConfigChange]]
    ) -> dict[str, None]:
        for change in changes[COPY]:
            self.retention = change.value
        return {COPY: None}

    async def list_offsets(
        self, _cluster: object, partitions: Sequence[Any], _time_ms: int
    ) -> dict[Any, Any]:
        return dict.fromkeys(partitions, self.listed)


class IdentityTopicReader:
    topic = "mm2-identity.east.internal"

    def __init__(self, target: TargetStub) -> None:
        self._target = target
        self._read_to = 0

    async def read_new(self) -> AsyncIterator[Record]:
        if self._target.refusal is not None:
            raise self._target.refusal
        new, self._read_to = self._target.records[self._read_to :], len(self._target.records)
        for record in new:
            yield record


class FlowOwnerStub:
    """Owns the flow immediately."""

    is_first = True

    async def own(self, *_: object, **__: object) -> None: ...

    async def positions(self) -> dict[Any, Any]:
        return {}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> TargetStub:
    target = TargetStub()
    clock = SimpleNamespace(monotonic=lambda: target.now_s)
    monkeypatch.setattr(identity_topic, "time", clock, raising=False)
    monkeypatch.setattr(retention_writer, "time", clock, raising=False)
    monkeypatch.setattr(identity_topic, "append", target.append)
    monkeypatch.setattr(admin, "describe_topic_configs", target.describe_all)
    monkeypatch.setattr(admin, "try_describe_topic_configs", target.try_describe)
    monkeypatch.setattr(admin, "alter_topic_configs", target.alter)
    monkeypatch.setattr(admin, "list_offsets", target.list_offsets)
    return target


@pytest.mark.parametrize("clock_error_ms", [-3_600_000, 0, 3_600_000])
def test_a_connector_ends_a_hold_that_is_not_renewed_despite_a_wrong_wall_clock(
    target: TargetStub, clock_error_ms: int
) -> None:
    seed, connector = target.connector(), target.connector(clock_error_ms=clock_error_ms)
    held: list[tuple[str | None, frozenset[str]]] = []

    async def test() -> None:
        await seed.hold("seed", {COPY: {"retention.ms": "5000"}})
        for _ in range(3):
            await connector.settle()
            held.append((target.retention, await connector.held()))
            target.now_s += LEASE_S - 1
            await seed.renew("seed", {COPY: ("retention.ms",)})
        await connector.settle()
        target.now_s += LEASE_S
        await connector.settle()

    asyncio.run(test())

    assert held == [("-1", frozenset({COPY}))] * 3
    assert target.retention == "5000"


def test_a_topic_whose_settings_are_denied_does_not_keep_the_retention_of_others(target: TargetStub) -> None:
    """They would keep all records until the right is given back."""
    seed, connector = target.connector(), target.connector()
    before = {"retention.ms": "5000"}

    async def test() -> tuple[tuple[str, ...], tuple[str, ...]]:
        await seed.hold("seed", {COPY: before, "east.users": before})
        target.denied = {"east.users"}
        held = await seed.renew("seed", {COPY: ("retention.ms",), "east.users": ("retention.ms",)})
        await connector.held()
        target.now_s += LEASE_S
        return held, await connector.settle()

    held, refused = asyncio.run(test())

    assert target.retention == "5000"
    assert ["The retention of target topic east.users cannot be" in sentence for sentence in held] == [True]
    (sentence,) = refused
    assert sentence.startswith("The retention of target topic east.users cannot be restored: ")

    target.denied, target.retention = set(), "-1"
    assert asyncio.run(connector.settle()) == ()
    assert target.retention == "5000"


@pytest.mark.parametrize(
    ("listed", "retention"),
    [
        (SimpleNamespace(error=0, offset=-1), "-1"),
        (SimpleNamespace(error=0, offset=0), "5000"),
        (SimpleNamespace(error=LEADER_NOT_AVAILABLE, offset=-1), "-1"),
    ],
    ids=["old records", "no old records", "unknown"],
)
def test_retention_is_held_unless_the_source_is_known_to_have_no_old_records(
    target: TargetStub, listed: SimpleNamespace, retention: str
) -> None:
    """A partition without a leader is copied later, when its records would be deleted at once."""
    target.listed = listed

    async def test() -> None:
        flow = target.job()
        await flow.claim()
        await RetentionHolder(flow).begin({"orders": COPY}, RANGES)

    asyncio.run(test())

    assert target.retention == retention


def test_a_seed_takes_over_the_hold_of_a_killed_seed_and_restores_retention(target: TargetStub) -> None:
    """While held, the topics have no retention to restore. The lease of the killed seed ends meanwhile."""
    retentions: list[str | None] = []

    async def test() -> None:
        killed, connector = target.job(), target.connector()
        await killed.claim()
        abandoned = RetentionHolder(killed)
        await abandoned.begin({"orders": COPY}, RANGES)
        await connector.settle()
        target.now_s += LEASE_S - 1

        flow = target.job()
        await flow.claim()
        seed = RetentionHolder(flow, syncs_configs=False)
        await seed.begin({"orders": COPY}, RANGES)
        target.now_s += 1
        await connector.settle()
        retentions.append(target.retention)
        await seed.end()
        retentions.append(target.retention)

    asyncio.run(test())

    assert retentions == ["-1", "5000"]


def test_a_seed_with_nothing_left_restores_the_retention_that_a_killed_seed_held(
    target: TargetStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed seed had copied everything, and did not come to restore the retention itself."""
    orders = TopicPartition("orders", 0)
    killed, flow = target.job(), target.job()
    seed: Any = SeedJob.__new__(SeedJob)
    seed._settings, seed._job = flow.settings, JobSettings(extra={}, accept_foreign=True)
    seed._progress, seed._coordinator = SeedProgress("1"), Coordinator()
    seed._is_stopped, seed._stalled_s, seed._left_at_start = False, 0.0, None

    async def opened(*_: object) -> ClaimedFlow:
        return flow

    async def positions(_: object) -> dict[TopicPartition, WriterPosition]:
        return {orders: WriterPosition(topic="orders", partition=0, next_source_offset=10)}

    async def arrange(_: object) -> Any:
        return SimpleNamespace(
            partitions=(orders,), names={"orders": COPY}, uncopied={}, incomplete=False, nothing_selected=None
        )

    async def source_logs(*_: object) -> dict[TopicPartition, SeedLog]:
        return {orders: SeedLog(start=0, end=10)}

    async def close(_: object) -> None: ...

    async def test() -> int:
        await killed.claim()
        await RetentionHolder(killed).begin({"orders": COPY}, RANGES)
        assert target.retention == "-1"
        monkeypatch.setattr(FlowOwnerStub, "positions", positions)
        monkeypatch.setattr(ClaimedFlow, "open", opened)
        monkeypatch.setattr(ClaimedFlow, "arrange", arrange)
        monkeypatch.setattr(ClaimedFlow, "source_logs", source_logs)
        monkeypatch.setattr(ClaimedFlow, "close", close)
        status: int = await seed._seed()
        return status

    status = asyncio.run(test())

    assert (status, target.retention) == (EXIT_DONE, "5000")


def test_a_seed_that_lost_the_flow_does_not_end_the_hold_of_its_successor(target: TargetStub) -> None:
    async def test() -> None:
        first, second = target.job(), target.job()
        await first.claim()
        await second.claim()
        seed = RetentionHolder(second)
        await seed.begin({"orders": COPY}, RANGES)
        late = RetentionHolder(first, syncs_configs=False)
        await late.begin({"orders": COPY}, RANGES)
        await late.end()

    asyncio.run(test())

    assert target.retention == "-1"


def test_a_seed_without_read_access_to_holds_runs_without_one(target: TargetStub) -> None:
    target.refusal = NotAuthorizedError(cluster="west", operation="Read", resource="topic mm2-identity")

    async def test() -> None:
        flow = target.job()
        await flow.claim()
        seed = RetentionHolder(flow)
        await seed.begin({"orders": COPY}, RANGES)
        await seed.end()

    asyncio.run(test())

    assert target.retention == "5000"
