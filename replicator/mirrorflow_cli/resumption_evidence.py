"""Reads the evidence for where each partition of a flow continues; changes nothing.

Sends the requests that the connector sends when it starts, with its credentials, and only those that read:
ListOffsets, Fetch, DescribeProducers and OffsetForLeaderEpoch. If the flow runs meanwhile, offsets can change
between two requests.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.errors import FailedError
from mirrorflow_core.errors import UndecidedError
from mirrorflow_core.exactly_once.alignment import Evidence, OffsetPair, ResumeAt
from mirrorflow_core.exactly_once.identity import Anchor, Decisions, Identity
from mirrorflow_core.exactly_once.resume_candidates import Candidate, candidates
from mirrorflow_core.exactly_once.resume_points import known_end, ladder
from mirrorflow_core.naming.transforms import RenameRule
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_offsets import offsets_at
from mirrorflow_kafka.admin.target_probe import EARLIEST, LATEST, ProbeResult, ask, read_tail, settle
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import name_of
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.offset_stores import position_store
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.resume.source_scan import LogExtent, SourceScan
from mirrorflow_replicator.copy.resume.source_truncation import REWRITTEN, truncations


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStart:
    """Where the flow would continue by itself, and why.

    `source_offset` is the next offset to copy; None if the flow would stop or wait.
    """

    source_offset: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The evidence for one partition. `problem` says why the target could not be read; "" if it was."""

    partition: TopicPartition
    target: TopicPartition
    source_log: LogExtent
    testimony: ProbeResult
    problem: str = ""
    identity: Identity | None = None  # None: the flow has never run
    anchor: Anchor | None = None  # None: the partition was never copied in this generation
    position: Position | None = None
    candidates: tuple[Candidate, ...] = ()
    decision: DecidedStart


async def read_resumptions(settings: SourceSettings, topic: str | None) -> AsyncIterator[Resumption]:
    """Yields the evidence for each partition of the flow, or only for those of source topic *topic*.

    Raises SettingError, ClusterError, and FailedError for a topic that the flow does not copy.
    """
    async with (
        reached(settings.source_consumer, settings) as source,
        reached(settings.target_producer, settings) as target,
    ):
        sizes = (await selected_topics(source, settings)).topics
        if topic is not None and topic not in sizes:
            alias = settings.source_alias
            raise FailedError(
                f"The flow copies no topic {topic} of cluster {alias}, or Describe on it is not granted."
            )
        chosen = {name: count for name, count in sizes.items() if topic in {None, name}}
        reader = _Reader(source, target, settings)
        await reader.begin(sorted(chosen))
        for name, count in chosen.items():
            for found in await reader.read([TopicPartition(name, number) for number in range(count)]):
                yield found


class _Reader:
    """Reads from the clusters of one flow, with its decisions and stored offsets."""

    def __init__(self, source: Cluster, target: Cluster, settings: SourceSettings) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._naming = make_naming(settings)
        self._decisions = Decisions()
        self._store: PositionStore = position_store(settings, target)

    async def begin(self, topics: Sequence[str]) -> None:
        """Reads decisions, stored offsets, and the partition leaders of *topics* and of their copies."""
        settings = self._settings
        await self._source.refresh(topics)
        copies = [self._naming.route(topic).name for topic in topics]
        await self._target.refresh([settings.offsets.topic, *copies])
        log = DecisionLog(self._target, settings.source_alias, replication_factor=1)
        if await log.exists():
            self._decisions = await log.read()
        await self._store.read_new()

    async def read(self, partitions: Sequence[TopicPartition]) -> list[Resumption]:
        """Returns the evidence for *partitions*, which all belong to one topic."""
        route = self._naming.route(partitions[0].topic)
        committed = self._settings.read_committed
        first = await offsets_at(self._source, partitions, EARLIEST, read_committed=committed)
        end = await offsets_at(self._source, partitions, LATEST, read_committed=committed)
        identity = self._decisions.identity
        targets = {one: TopicPartition(route.name, one.partition) for one in partitions}
        heard = await ask(
            self._target, targets.values(), producer_id=-1 if identity is None else identity.producer_id
        )
        return [
            await self._resumption(one, route, LogExtent(first[one], end[one]), heard[targets[one]])
            for one in partitions
        ]

    async def _resumption(
        self, partition: TopicPartition, route: RenameRule, source_log: LogExtent, heard: ProbeResult
    ) -> Resumption:
        identity, position = self._decisions.identity, self._store.positions.get(partition)
        anchor = None if identity is None else self._decisions.anchor(partition, identity.generation)
        problem = f"the target answers {name_of(heard.error)}" if heard.error else ""
        why = problem or "it was never copied in this generation: it begins as the settings say"
        found = Resumption(
            partition=partition,
            target=TopicPartition(route.name, partition.partition),
            source_log=source_log,
            testimony=heard,
            problem=problem,
            identity=identity,
            anchor=anchor,
            position=position,
            decision=DecidedStart(source_offset=None, why=why),
        )
        if identity is None or anchor is None or problem:
            return found
        if self._settings.with_java:
            return replace(found, decision=_by_position(anchor, position))
        evidence = Evidence(
            epoch=identity.producer_epoch,
            ladder=ladder(anchor, position, None),
            memory=heard.memory,
            log_start=heard.log_start,
            high_watermark=heard.high_watermark,
            known_end=known_end(anchor, position, None),
        )
        verdict, evidence = await settle(
            self._target, found.target, evidence, producer_id=identity.producer_id
        )
        if isinstance(verdict, ResumeAt):
            decision = await self._decide(found, identity, evidence, verdict, route)
        else:
            decision = DecidedStart(source_offset=None, why=verdict.value)
        if evidence.tail is None:
            # The decision did not need the target's last record, but it is shown beside the other evidence.
            tail = await read_tail(self._target, found.target, evidence, producer_id=identity.producer_id)
            evidence = replace(evidence, tail=tail)
        return replace(found, candidates=candidates(evidence), decision=decision)

    async def _decide(
        self, found: Resumption, identity: Identity, evidence: Evidence, at: ResumeAt, route: RenameRule
    ) -> DecidedStart:
        """Returns the connector's decision if the target's last record is known."""
        answers = await truncations(self._source, {found.partition: evidence.ladder})
        if code := answers.refused.get(found.partition):
            why = f"the source refuses to report where a leader epoch ended ({name_of(code)})"
            return DecidedStart(source_offset=None, why=why)
        lost = answers.truncated.get(found.partition)
        if lost is not None:
            return DecidedStart(
                source_offset=None, why=f"{REWRITTEN}, from offset {lost.offset} on or before"
            )
        if at.walk_records == 0:
            return DecidedStart(source_offset=at.known.source_offset + 1, why="the target has nothing later")
        topic = found.partition.topic
        policies = await admin.describe_cleanup_policies(self._source, [topic])
        scan = SourceScan(
            source=self._source,
            partition=found.partition,
            target=self._target,
            target_partition=found.target,
            identity=identity,
            extent=found.source_log,
            is_compacted="compact" in (policies.get(topic) or "compact"),
            read_committed=self._settings.read_committed,
            header_edits=route.edits,
        )
        try:
            pair = await scan.find(at)
        except UndecidedError as error:
            return DecidedStart(source_offset=None, why=error.evidence)
        if not isinstance(pair, OffsetPair):
            return DecidedStart(source_offset=None, why=f"{REWRITTEN}, from offset {pair.offset} on")
        why = f"both logs agree on the {at.walk_records} records after source offset {at.known.source_offset}"
        return DecidedStart(source_offset=pair.source_offset + 1, why=why)


def _by_position(anchor: Anchor, position: Position | None) -> DecidedStart:
    """Decides by the newest stored offset: with Java, one transaction holds records and offsets."""
    offset = anchor.source_offset if position is None else position.source_offset + 1
    return DecidedStart(source_offset=offset, why="tasks commit records and positions together")
