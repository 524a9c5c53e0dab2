"""Sets later anchors of a partition in one generation, after a loss or for a re-created topic.

The loss policy decides what is done. Sequence numbers continue and offsets jump; the step is decided with all
other copiers.
"""

from collections.abc import Callable

from mirrorflow_core.errors import SourceDataLostError, TargetDataLostError
from mirrorflow_core.exactly_once.alignment import OffsetPair, ResumeAt, ordinal_near
from mirrorflow_core.exactly_once.identity import Anchor, Identity
from mirrorflow_core.settings import LossPolicy, SourceSettings, StartPosition
from mirrorflow_kafka.admin.target_probe import EARLIEST, ProbeResult
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_replicator.copy.copier_context import DetectedLoss
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.source_offsets import SourceOffsets

_BEGINNINGS = {start.value for start in StartPosition}


class LossSteps:
    """Carries out the loss policy for partitions that cannot continue where they were."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        identity: Identity,
        log: DecisionLog,
        settings: SourceSettings,
        offsets: SourceOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._log = log
        self._settings = settings
        self._offsets = offsets
        self._now_ms = now_ms

    async def compare_topics(self, lane: PartitionCopier, heard: ProbeResult) -> None:
        """Detects a topic that is not the anchor's, by its topic id, and applies the loss policy.

        Raises ClusterError.
        """
        anchor = lane.anchor
        assert anchor is not None
        target_id = self._target.metadata.topic_id(lane.target_topic)
        if anchor.target_topic_id and target_id and anchor.target_topic_id != target_id:
            await self._target_made_anew(lane, anchor, heard)
        source_id = self._source.metadata.topic_id(lane.topic)
        assert lane.anchor is not None
        if (
            anchor.source_topic_id
            and source_id
            and lane.anchor.source_topic_id != source_id
            and lane.loss is None
        ):
            first = await self._offsets.of([lane], EARLIEST)
            wanted = lane.ladder()[0].source_offset + 1
            lane.loss = DetectedLoss(wanted, first[lane], "the source topic was deleted and made anew")

    async def _target_made_anew(self, lane: PartitionCopier, anchor: Anchor, heard: ProbeResult) -> None:
        error = TargetDataLostError(
            topic=lane.topic,
            partition=lane.partition,
            target_topic=lane.target_topic,
            how="was deleted and made anew, so records copied before are gone from it",
            then=self.done,
        )
        if self.on_loss is LossPolicy.FAIL:
            lane.stop(error)
            return
        lane.go_on_after(error)
        if self.on_loss is LossPolicy.RESTART:
            offset = (await self._offsets.of([lane], EARLIEST))[lane]
        else:
            offset = lane.ladder()[0].source_offset + 1
        newest, memory = lane.ladder()[0], heard.memory
        ordinal = 0
        if memory is not None and memory.sequence >= 0 and memory.epoch == self._identity.producer_epoch:
            # What was in flight when the topic was deleted went into the new one, which accepted it as its
            # first records.
            ordinal = ordinal_near(memory.sequence, newest.ordinal) + 1
        lane.stream = None
        await self._step(
            lane,
            anchor,
            ordinal=ordinal,
            offset=offset,
            target_end=heard.high_watermark,
            why="target made anew",
        )

    @property
    def on_loss(self) -> LossPolicy:
        """What to do where records are lost, or where nothing shows whether they are."""
        return self._settings.on_source_loss

    @property
    def done(self) -> str:
        """The error suffix that describes the loss policy; empty for FAIL."""
        if self.on_loss is LossPolicy.FAIL:
            return ""
        return f"it goes on, as mirrorflow.source.loss.policy={self.on_loss.value} says"

    async def begin_again(self, lane: PartitionCopier, at: ResumeAt) -> OffsetPair:
        """Begins a step of the stream at the source's first record, numbered behind *at*.

        Raises ClusterError.
        """
        assert lane.anchor is not None
        first = (await self._offsets.of([lane], EARLIEST))[lane]
        return await self._step(
            lane,
            lane.anchor,
            ordinal=at.ordinal + 1,
            offset=first,
            target_end=at.target_offset + 1,
            why="undecided",
        )

    async def after_loss(self, lane: PartitionCopier, pair: OffsetPair) -> OffsetPair | None:
        """Applies the loss policy to lost source records.

        Returns where to continue; None if the partition stops.
        """
        loss, anchor = lane.loss, lane.anchor
        assert loss is not None
        assert anchor is not None
        policy = self.on_loss
        same_topic = anchor.source_topic_id == self._source.metadata.topic_id(lane.topic)
        # A flow that continues from a stored offset has promised what follows it. One that begins has
        # promised nothing yet.
        nothing_yet = pair.ordinal < anchor.ordinal and same_topic and anchor.why in _BEGINNINGS
        if not nothing_yet:
            error = SourceDataLostError(
                topic=lane.topic,
                partition=lane.partition,
                wanted=loss.wanted,
                found=loss.found,
                how=loss.how,
                then=self.done,
            )
            if policy is LossPolicy.FAIL:
                lane.loss = None
                lane.stop(error)
                return None
            lane.go_on_after(error)
        found = loss.found
        if policy is LossPolicy.RESTART and not nothing_yet:
            found = (await self._offsets.of([lane], EARLIEST))[lane]
        if not nothing_yet:
            lane.lost_records += max(0, loss.found - loss.wanted)
        target_end = pair.target_offset + 1
        why = anchor.why if nothing_yet else loss.how
        pair = await self._step(
            lane, anchor, ordinal=pair.ordinal + 1, offset=found, target_end=target_end, why=why
        )
        lane.loss = None
        return pair

    async def after_refusal(self, lane: PartitionCopier, pair: OffsetPair) -> OffsetPair:
        """Leaves out the records that the target refused, unless it has others than when it refused them.

        Returns where to continue. Raises ClusterError.
        """
        skip, anchor = lane.skip, lane.anchor
        assert skip is not None
        assert anchor is not None
        lane.skip = None
        if pair.ordinal + 1 != skip.ordinal:
            return pair
        lane.go_on_after(skip.error)
        lane.refusals = 0  # this is progress: no backoff
        lane.lost_records += skip.next_offset - pair.source_offset - 1
        return await self._step(
            lane,
            anchor,
            ordinal=skip.ordinal,
            offset=skip.next_offset,
            target_end=pair.target_offset + 1,
            why="refused by the target",
        )

    async def _step(
        self, lane: PartitionCopier, anchor: Anchor, *, ordinal: int, offset: int, target_end: int, why: str
    ) -> OffsetPair:
        proposal = Anchor(
            generation=anchor.generation,
            topic=anchor.topic,
            partition=anchor.partition,
            step=anchor.step + 1,
            ordinal=ordinal,
            source_offset=offset,
            target_offset=target_end,
            source_topic_id=self._source.metadata.topic_id(lane.topic),
            target_topic_id=self._target.metadata.topic_id(lane.target_topic),
            why=why,
            seen_at=anchor.seen_at,
        )
        await self._log.decide([proposal], now_ms=self._now_ms())
        lane.anchor = self._log.decisions.anchor(lane.source, self._identity.generation)
        assert lane.anchor is not None
        return lane.anchor.as_pair()
