"""Where the stream of each partition begins, decided with all other copiers (DESIGN 4.2, clauses 1 and 9), and what
becomes of it when the source has lost records or a topic was made anew.

An anchor is proposed from what is known (Java's position, the end of an earlier generation, the configured start) and
used as it was decided. Deciding comes before the first record and after a loss; in between this module is not called.
"""

from collections.abc import Callable, Mapping, Sequence

from mirrorflow_replicator.errors import (
    BrokerError,
    FencedError,
    SourceDataLostError,
    TargetDataLostError,
    TargetTakenError,
    UndecidedError,
)
from mirrorflow_replicator.flow.alignment import GoOn, Pair, ordinal_near
from mirrorflow_replicator.flow.altered import NOTHING_FOREIGN
from mirrorflow_replicator.flow.identity import Anchor, Beginning, Identity
from mirrorflow_replicator.flow.ladder import ladder
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import EPOCH_IS_OVER, raise_for
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.witnesses import EARLIEST, Testimony, ask
from mirrorflow_replicator.runtime.earlier import end_of, targets_of
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.source_offsets import SourceOffsets
from mirrorflow_replicator.runtime.surroundings import Loss, State
from mirrorflow_replicator.settings import LossPolicy, SourceSettings, StartPosition

_BEGINNINGS = {start.value for start in StartPosition}


class Anchoring:
    """See the module."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        identity: Identity,
        log: IdentityLog,
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
        self._now_ms = now_ms
        self._positions = positions

    async def anchor(
        self, lanes: Sequence[Lane], heard: Mapping[TopicPartition, Testimony]
    ) -> frozenset[Lane]:
        """Give every lane its anchor, and notice topics that were made anew; returns whom to ask again, because a fence
        has changed the target since *heard*.
        """
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
            # Its copiers have read the log before our anchors were in it, and do not know that we are about to write.
            raise self._fenced()
        if any(self._copied_by_java(lane) for lane in lanes):
            raise self._fenced()
        self._stop_where_taken(lanes)
        for lane in lanes:
            if lane.state is not State.STOPPED:
                await self._compare(lane, heard[lane.target])
        return frozenset(carried)

    def _stop_where_taken(self, lanes: Sequence[Lane]) -> None:
        """Two topics in one partition of the target would share its numbers, and pass over each other's records."""
        beginning = [lane for lane in lanes if lane.stream is None and lane.state is not State.STOPPED]
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

    def _known(self, lane: Lane) -> bool:
        lane.anchor = self._log.decisions.anchor(lane.source, self._identity.generation)
        return lane.anchor is not None

    def _copied_by_java(self, lane: Lane) -> bool:
        """Whether Java has copied it since it was begun in our generation: then its numbers are over (clause 9)."""
        anchor, position = lane.anchor, lane.position
        if lane.stream is not None or anchor is None or position is None or self._settings.with_java:
            return False
        return position.sequence < 0 and position.source_offset >= anchor.source_offset

    def _earlier(self, lane: Lane) -> Anchor | None:
        """Its anchor in the newest generation before ours that has one."""
        return self._log.decisions.newest_anchor(lane.source, self._identity.generation - 1)

    def _beginning(self, lane: Lane) -> Beginning | None:
        """A word on where it begins, if nobody has copied it since, nor had another word in the offsets topic."""
        earlier, position = self._earlier(lane), lane.position
        said = self._log.decisions.beginning(lane.source, after=earlier.generation if earlier else 0)
        if said is not None and said.source_topic_id:
            now = self._source.metadata.topic_id(lane.topic)
            if now and now != said.source_topic_id:
                return None  # it was said of a topic that is gone
        if said is None or position is None or position.sequence >= 0 or position.source_offset < 0:
            return said
        return said if position.source_offset + 1 == said.source_offset else None

    def _first(self, lane: Lane, offset: int, why: str, target_end: int) -> Anchor:
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
        self, lanes: Sequence[Lane], begun: Mapping[Lane, Beginning]
    ) -> dict[Lane, tuple[int, str]]:
        """Where to begin what was never copied by us: after Java's position, else as the settings say."""
        starts: dict[Lane, tuple[int, str]] = {}
        fresh = []
        for lane in lanes:
            if lane.position is not None and lane.position.source_offset >= 0 and lane.position.sequence < 0:
                starts[lane] = (lane.position.source_offset + 1, "position")
            else:
                fresh.append(lane)
        # Taken back to its beginning by a user, one begins as it did at first.
        for initial in (True, False):
            some = [lane for lane in fresh if (lane.initial or lane in begun) is initial]
            starts |= await self.offsets.by_settings(some, initial=initial) if some else {}
        return starts

    async def _fence(self, partitions: Sequence[TopicPartition]) -> None:
        """Refuse what copiers of the earlier generation may still send: an empty transaction of the new epoch (clause 9).

        A transaction of theirs that was open was aborted when the new epoch was given.
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
            # Somebody has raised it since ours was decided, and may have died before he could tell.
            raise self._fenced() from error

    def _fenced(self) -> FencedError:
        return FencedError(source=self._source.alias, epoch=self._identity.producer_epoch)

    async def _carry_on(
        self, carried: Mapping[Lane, Anchor], starts: dict[Lane, tuple[int, str]]
    ) -> dict[Lane, int]:
        """Fence the earlier generation, and add to *starts* where it has come to, for lanes that are not there already.

        A lane of which nobody can say that, and which is to stop then, is left out. Returns where the targets end.
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
                if self.on_loss is LossPolicy.FAIL:
                    lane.stop(error)
                    continue
                lane.go_on_after(
                    UndecidedError(
                        topic=lane.topic,
                        partition=lane.partition,
                        evidence=error.evidence,
                        then=self.done,
                    )
                )
                offset = ladder(carried[lane], lane.position, None)[0].source_offset + 1
                if self.on_loss is LossPolicy.RESTART:
                    offset = (await self.offsets.of([lane], EARLIEST))[lane]
                starts[lane] = offset, "undecided"
        return {lane: heard[lane.target].high_watermark for lane in carried}

    async def _end_of_earlier(
        self, lane: Lane, anchor: Anchor, written: TopicPartition, heard: Testimony
    ) -> tuple[int, str]:
        position = lane.position
        # The one that the earlier generation itself began behind says nothing of how far that has come.
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

    async def _compare(self, lane: Lane, heard: Testimony) -> None:
        """Notice a topic that is not the one of the anchor."""
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
            first = await self.offsets.of([lane], EARLIEST)
            wanted = lane.ladder()[0].source_offset + 1
            lane.loss = Loss(wanted, first[lane], "the source topic was deleted and made anew")

    async def _target_made_anew(self, lane: Lane, anchor: Anchor, heard: Testimony) -> None:
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
            offset = (await self.offsets.of([lane], EARLIEST))[lane]
        else:
            offset = lane.ladder()[0].source_offset + 1
        newest, memory = lane.ladder()[0], heard.memory
        ordinal = 0
        if memory is not None and memory.sequence >= 0 and memory.epoch == self._identity.producer_epoch:
            # What was in flight when the topic was deleted went into the new one, which took it for the first.
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
        """What to do where records are lost, or nobody knows whether they are."""
        return self._settings.on_source_loss

    @property
    def done(self) -> str:
        """What is done about a loss, for its sentence; "" where that is for the user to say."""
        if self.on_loss is LossPolicy.FAIL:
            return ""
        return f"it goes on, as mirrorflow.source.loss.policy={self.on_loss.value} says"

    async def begin_again(self, lane: Lane, at: GoOn) -> Pair:
        """A step of the stream: from the source's first record, numbered on behind *at*."""
        assert lane.anchor is not None
        first = (await self.offsets.of([lane], EARLIEST))[lane]
        return await self._step(
            lane,
            lane.anchor,
            ordinal=at.ordinal + 1,
            offset=first,
            target_end=at.target_offset + 1,
            why="undecided",
        )

    async def after_loss(self, lane: Lane, pair: Pair) -> Pair | None:
        """Deal with lost source records by policy; None if the partition stops."""
        loss, anchor = lane.loss, lane.anchor
        assert loss is not None
        assert anchor is not None
        policy = self.on_loss
        same_topic = anchor.source_topic_id == self._source.metadata.topic_id(lane.topic)
        # A flow that goes on from somebody's position has promised what follows it; one that begins has promised nothing.
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
            found = (await self.offsets.of([lane], EARLIEST))[lane]
        if not nothing_yet:
            lane.lost_records += max(0, loss.found - loss.wanted)
        target_end = pair.target_offset + 1
        why = anchor.why if nothing_yet else loss.how
        pair = await self._step(
            lane, anchor, ordinal=pair.ordinal + 1, offset=found, target_end=target_end, why=why
        )
        lane.loss = None
        return pair

    async def _step(
        self, lane: Lane, anchor: Anchor, *, ordinal: int, offset: int, target_end: int, why: str
    ) -> Pair:
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
        self._known(lane)
        assert lane.anchor is not None
        return lane.anchor.as_pair()
