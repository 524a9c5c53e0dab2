"""Decides, together with all other copiers, where the stream of each partition begins.

An anchor (docs/exactly-once.md, clauses 1 and 9) is proposed from what is known: Java's offset, the end of an
earlier generation, or the configured start. The one that was decided is used, before the first record.
`resume.loss_steps` handles later anchors of the same generation.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from mirrorflow_core.errors import (
    BrokerError,
    FencedError,
    TargetTakenError,
    UndecidedError,
)
from mirrorflow_core.exactly_once.altered_offsets import NOTHING_FOREIGN
from mirrorflow_core.exactly_once.identity import Anchor, Beginning, Identity
from mirrorflow_core.exactly_once.resume_points import ladder
from mirrorflow_core.exactly_once.succession import NOTICED_S, SILENCE_S
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_core.settings import LossPolicy, SourceSettings
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import EARLIEST, ProbeResult, ask
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import EPOCH_IS_OVER, raise_for
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.loss_steps import LossSteps
from mirrorflow_replicator.copy.resume.previous_generation import end_of, targets_of
from mirrorflow_replicator.copy.resume.source_offsets import SourceOffsets

# Older decisions are read again when partitions are asked about.
DECISIONS_FRESH_S = 1.0


class StreamStarts:
    """Gives each partition its anchor in the flow's generation."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        identity: Identity,
        log: DecisionLog,
        settings: SourceSettings,
        now_ms: Callable[[], int],
        positions: PositionStore,
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._log = log
        self._settings = settings
        self.offsets = SourceOffsets(source, settings)
        self.steps = LossSteps(
            source=source,
            target=target,
            identity=identity,
            log=log,
            settings=settings,
            offsets=self.offsets,
            now_ms=now_ms,
        )
        self._now_ms = now_ms
        self._positions = positions
        self._read_s = time.monotonic()  # when the decisions were last read

    def unfenced_wait_s(self, lane: PartitionCopier) -> float:
        """Returns how many seconds copiers of the earlier generation must be silent before *lane* begins.

        0 means that they are fenced. That the copier which stored the offset has left says nothing about
        another one started since.
        """
        anchor = None if lane.anchor is not None or self._known(lane) else self._earlier(lane)
        decisions = self._log.decisions
        earlier = None if anchor is None else decisions.generation(anchor.generation)
        if earlier is None or self._identity.can_fence(earlier):
            return 0.0
        age_s = (self._now_ms() - decisions.decided_ms(self._identity.generation)) / 1000
        return max(SILENCE_S, NOTICED_S - max(0.0, age_s))

    async def anchor(
        self, lanes: Sequence[PartitionCopier], heard: Mapping[TopicPartition, ProbeResult]
    ) -> frozenset[PartitionCopier]:
        """Gives each of *lanes* its anchor, and notices re-created topics.

        Returns the copiers to ask again, because a fence has changed the target since *heard*. Raises
        FencedError if this generation is over, and ClusterError.
        """
        if time.monotonic() - self._read_s > DECISIONS_FRESH_S:
            # A copier that no fence refuses, and that did not run for a while, learns here that its
            # generation is over.
            self._read_s = time.monotonic()
            await self._log.read()
        new = [lane for lane in lanes if lane.anchor is None and not self._known(lane)]
        carried = {lane: anchor for lane in new if (anchor := self._earlier(lane)) is not None}
        if new:
            begun = {lane: said for lane in new if (said := self._beginning(lane)) is not None}
            fresh = [lane for lane in new if lane not in carried and lane not in begun]
            fresh += [lane for lane, said in begun.items() if said.source_offset < 0]
            starts = await self._starts(fresh, begun)
            for lane, said in begun.items():
                starts.setdefault(lane, (said.source_offset, said.why))
            ends = {lane: heard[lane.target].high_watermark for lane in new}
            if carried:
                ends |= await self._carry_on(carried, starts)
            known = [lane for lane in new if lane in starts]
            first = [self._first(lane, *starts[lane], ends[lane]) for lane in known]
            await self._log.decide(first, now_ms=self._now_ms())
            for lane in known:
                self._known(lane)
        newest = self._log.decisions.identity
        if newest is not None and newest.generation > self._identity.generation:
            # Its copiers read the log before our anchors were in it, and do not know that we are about to
            # write.
            raise self._fenced()
        if any(self._copied_by_java(lane) for lane in lanes):
            raise self._fenced()
        self._stop_where_taken(lanes)
        for lane in lanes:
            if lane.state is not CopierState.STOPPED:
                await self.steps.compare_topics(lane, heard[lane.target])
        return frozenset(carried)

    def _stop_where_taken(self, lanes: Sequence[PartitionCopier]) -> None:
        """Stops copiers whose target partition belongs to another topic.

        Both would share its numbers and skip each other's records.
        """
        beginning = [lane for lane in lanes if lane.stream is None and lane.state is not CopierState.STOPPED]
        owners = self._log.decisions.owners(self._identity.generation) if beginning else {}
        for lane in beginning:
            assert lane.anchor is not None
            owner = owners.get((lane.anchor.target_topic_id, lane.partition), lane.topic)
            if owner != lane.topic:
                lane.stop(
                    TargetTakenError(
                        topic=lane.topic,
                        partition=lane.partition,
                        target_topic=lane.target_topic,
                        owner=owner,
                    )
                )

    def _known(self, lane: PartitionCopier) -> bool:
        lane.anchor = self._log.decisions.anchor(lane.source, self._identity.generation)
        return lane.anchor is not None

    def _copied_by_java(self, lane: PartitionCopier) -> bool:
        """Returns whether Java has copied *lane* since it began in our generation.

        That ends the numbering (clause 9).
        """
        anchor, position = lane.anchor, lane.position
        if lane.stream is not None or anchor is None or position is None:
            return False
        return position.sequence < 0 and position.source_offset >= anchor.source_offset

    def _earlier(self, lane: PartitionCopier) -> Anchor | None:
        """Returns its anchor in the newest generation before ours that has one."""
        return self._log.decisions.newest_anchor(lane.source, self._identity.generation - 1)

    def _beginning(self, lane: PartitionCopier) -> Beginning | None:
        """Returns the start offset that was set by hand, unless it was copied or altered since; else None."""
        earlier, position = self._earlier(lane), lane.position
        said = self._log.decisions.beginning(lane.source, after=earlier.generation if earlier else 0)
        if said is not None and said.source_topic_id:
            now = self._source.metadata.topic_id(lane.topic)
            if now and now != said.source_topic_id:
                return None  # it was set for a topic that is gone
        if said is None or position is None or position.sequence >= 0 or position.source_offset < 0:
            return said
        return said if position.source_offset + 1 == said.source_offset else None

    def _first(self, lane: PartitionCopier, offset: int, why: str, target_end: int) -> Anchor:
        return Anchor(
            generation=self._identity.generation,
            topic=lane.topic,
            partition=lane.partition,
            step=0,
            ordinal=0,
            source_offset=offset,
            target_offset=target_end,
            source_topic_id=self._source.metadata.topic_id(lane.topic),
            target_topic_id=self._target.metadata.topic_id(lane.target_topic),
            why=why,
            seen_at=self._positions.foreign.get(lane.source, NOTHING_FOREIGN).at,
        )

    async def _starts(
        self, lanes: Sequence[PartitionCopier], begun: Mapping[PartitionCopier, Beginning]
    ) -> dict[PartitionCopier, tuple[int, str]]:
        """Returns where partitions begin that this flow never copied: after Java's offset, or as configured.

        They begin after the flow's own stored offset if its decisions are gone and both topics are still the
        same.
        """
        starts: dict[PartitionCopier, tuple[int, str]] = {}
        fresh = []
        for lane in lanes:
            if lane.position is not None and lane.position.source_offset >= 0 and lane.position.sequence < 0:
                starts[lane] = (lane.position.source_offset + 1, "position")
            elif (
                lane not in begun
                and lane.position is not None
                and self._is_of_these_topics(lane, lane.position)
            ):
                starts[lane] = (lane.position.source_offset + 1, "position without decisions")
            else:
                fresh.append(lane)
        # A partition that a user reset begins as it did at first.
        for initial in (True, False):
            some = [lane for lane in fresh if (lane.initial or lane in begun) is initial]
            starts |= await self.offsets.by_settings(some, initial=initial) if some else {}
        return starts

    def _is_of_these_topics(self, lane: PartitionCopier, position: Position) -> bool:
        return (
            position.sequence >= 0
            and position.source_topic_id == self._source.metadata.topic_id(lane.topic)
            and position.target_topic_id == self._target.metadata.topic_id(lane.target_topic)
        )

    async def _fence(self, partitions: Sequence[TopicPartition]) -> None:
        """Fences copiers of the earlier generation with an empty transaction of the new epoch (clause 9).

        Their open transaction, if any, was aborted when the new epoch was assigned.
        """
        identity = self._identity
        if not identity.transactional_id:
            return
        try:
            await admin.empty_transaction(
                self._target,
                identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                partitions=partitions,
            )
        except BrokerError as error:
            if error.code not in EPOCH_IS_OVER:
                raise
            # Another copier raised the epoch since ours was decided, and may have died before it could record
            # that.
            raise self._fenced() from error

    def _fenced(self) -> FencedError:
        return FencedError(source=self._source.alias, epoch=self._identity.producer_epoch)

    async def _carry_on(
        self, carried: Mapping[PartitionCopier, Anchor], starts: dict[PartitionCopier, tuple[int, str]]
    ) -> dict[PartitionCopier, int]:
        """Fences the earlier generation and adds where it ended to *starts*, for those not there already.

        A partition whose end nothing shows, and that the loss policy stops, is left out. Returns where the
        targets end.
        """
        written = await targets_of(self._target, carried)
        touched = tuple(dict.fromkeys((*written.values(), *(lane.target for lane in carried))))
        await self._fence(touched)
        heard = await ask(self._target, touched, producer_id=self._identity.producer_id)
        for partition, testimony in heard.items():
            if testimony.error:
                raise_for(
                    testimony.error, cluster=self._target.alias, request="ListOffsets", subject=str(partition)
                )
        for lane in [lane for lane in carried if lane not in starts]:
            place = written[lane]
            try:
                starts[lane] = await self._end_of_earlier(lane, carried[lane], place, heard[place])
            except UndecidedError as error:
                if self.steps.on_loss is LossPolicy.FAIL:
                    lane.stop(error)
                    continue
                lane.go_on_after(
                    UndecidedError(
                        topic=lane.topic,
                        partition=lane.partition,
                        evidence=error.evidence,
                        then=self.steps.done,
                    )
                )
                offset = ladder(carried[lane], lane.position, None)[0].source_offset + 1
                if self.steps.on_loss is LossPolicy.RESTART:
                    offset = (await self.offsets.of([lane], EARLIEST))[lane]
                starts[lane] = offset, "undecided"
        return {lane: heard[lane.target].high_watermark for lane in carried}

    async def _end_of_earlier(
        self, lane: PartitionCopier, anchor: Anchor, written: TopicPartition, heard: ProbeResult
    ) -> tuple[int, str]:
        position = lane.position
        # The offset behind which the earlier generation itself began does not show how far that generation
        # came.
        if (
            position is not None
            and position.sequence < 0 <= position.source_offset != anchor.source_offset - 1
        ):
            return position.source_offset + 1, "position"
        earlier = self._log.decisions.generation(anchor.generation)
        assert earlier is not None
        pair = await end_of(
            self._source,
            self._target,
            lane,
            (earlier, self._identity),
            anchor,
            written=written,
            heard=heard,
            extent=await self.offsets.extent(lane),
        )
        return pair.source_offset + 1, self._identity.why
