"""A world: two simulated clusters, copiers of one flow, time, and what disturbs them.

`play` runs a script (a coroutine with a loop of its own, which waits in virtual time), then heals everything and lets the
world run until it is quiet. Only one thing happens at a time; in which order is decided by the times at which messages
arrive, and these by the chooser.
"""

import asyncio
import heapq
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy, SourceSettings
from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, encode
from tests.model.account import Trace
from tests.model.broker import SimulatedCluster
from tests.model.chooser import Chooser
from tests.model.clock import Clock
from tests.model.copier import Copier, Seen, Setup
from tests.model.disturbances import Disturbances
from tests.model.errors import RefusedError
from tests.model.judge import Judgement, is_settled, judge
from tests.model.leader import Appended, PartitionLeader
from tests.model.loop import NEVER_S, VirtualLoop, new_loop
from tests.model.network import LATENCY_S, Link, Message, Network
from tests.model.options import Options, settings_of
from tests.model.producer_state import KAFKA_3_5
from tests.model.product import simulated
from tests.model.source import Content, SourceProducer

ABORT_CHECK_S = 10.0
QUIET_LOOK_S = 0.25
PROBES = 3  # records for each partition when all is over
STEPS_MAX = 3_000_000

Script = Callable[["World"], Awaitable[None]]


class World:
    """Clusters, a network, copiers and a script, on one clock."""

    def __init__(self, chooser: Chooser, options: Options, *, traced: bool = False) -> None:
        self.chooser = chooser
        self.draws = chooser.random
        self.options = options
        self.clock = Clock()
        self.trace = Trace(self.clock) if traced else None
        self.network = Network(self)
        self.source = SimulatedCluster("east", self, brokers=options.source_brokers, rules=KAFKA_3_5)
        self.target = SimulatedCluster(
            "west",
            self,
            brokers=options.target_brokers,
            rules=options.rules,
            transactional_ids=options.transactional_ids,
        )
        self.target.configs |= options.broker_configs
        self.source.configs["fetch.max.bytes"] = str(options.fetch_bytes)
        self.clusters = {"east": self.source, "west": self.target}
        self.disturbances = Disturbances(self)
        self.copiers: list[Copier] = []
        self.running: Copier | None = None
        self.mistakes: list[str] = []
        self.seen: dict[TopicPartition, Seen] = {}
        # For the judge: what the script did, and what is allowed for it.
        self.begins: dict[TopicPartition, int] = {}  # the source offset at which copying begins
        self.gone_from_target: defaultdict[TopicPartition, set[Content]] = defaultdict(
            set
        )  # compacted, deleted
        self.had_stranger = False
        self.target_was_made_anew = False
        self.is_unprotected = False
        self.allowed_reasons: set[str] = set()
        self.partitions = tuple(TopicPartition(options.topic, n) for n in range(options.partitions))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count(1)
        self._script_loop = new_loop(self.clock, name="script", on_error=self._script_failed)
        self._loops: list[tuple[VirtualLoop, Copier | None]] = [(self._script_loop, None)]
        self._steps = 0
        self._make_topics()
        self.producer = SourceProducer(self)
        self._every(options.expiry_check_s, self.target.tick_minutes)
        self._every(ABORT_CHECK_S, self.target.abort_timed_out)

    def _make_topics(self) -> None:
        options = self.options
        self.source.create_topic(options.topic, options.partitions, dict(options.source_configs))
        self.target.create_topic(options.target_topic, options.partitions, dict(options.target_configs))

    # -- time and events

    @property
    def wall_ms(self) -> int:
        return self.clock.wall_ms

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.clock.now + delay_s, action)

    def _every(self, interval_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.after(interval_s, again)

        self.after(interval_s, again)

    def latency_s(self, link: Link | None) -> float:
        """How long a message is on its way."""
        if self.options.jitter_s:
            return LATENCY_S + self.draws.random() * self.options.jitter_s
        return LATENCY_S

    def jump(self, seconds: float) -> None:
        """The machines of all copiers sleep for so long, brokers do not: what is due in between happens after it."""
        until = self.clock.now + seconds
        while self._events and self._events[0][0] <= until:
            when, _, action = heapq.heappop(self._events)
            self.clock.now = max(self.clock.now, when)
            action()
        self.clock.now = until

    def _step(self) -> bool:
        """Let the next thing happen; False if nothing will."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise RuntimeError("the world does not end")
        events = self._events
        when = events[0][0] if events else NEVER_S
        due: tuple[VirtualLoop, Copier | None] | None = None
        for one in self._loops:
            loop, copier = one
            if copier is not None and (copier.is_dead or copier.is_frozen):
                continue
            if loop.is_ready:
                due = one
                break
            at = loop.next_at
            if at < when or (at == when and due is None and at != NEVER_S):
                when, due = at, one
        else:
            if when == NEVER_S:
                return False
            self.clock.now = max(self.clock.now, when)
        if due is None:
            heapq.heappop(events)[2]()
        else:
            self.running = due[1]
            due[0].run_now()
            self.running = None
        return True

    # -- what scripts use

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(
        self, condition: Callable[[], bool], *, timeout_s: float = 60.0, every_s: float = 0.05
    ) -> bool:
        """Wait for *condition*; False when that takes too long."""
        end = self.clock.now + timeout_s
        while not condition():
            if self.clock.now >= end:
                return False
            await asyncio.sleep(every_s)
        return True

    def settings(self, **changes: Any) -> SourceSettings:
        """The flow's settings, with *changes* of `SourceSettings`."""
        return replace(settings_of(self.options), **changes)

    def start(
        self,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        settings: SourceSettings | None = None,
        copier: str = "",
        predecessor_gone: bool = False,
    ) -> Copier:
        """A new process that copies *partitions*, all if nothing is said."""
        setup = Setup(
            settings=settings or self.settings(),
            partitions=tuple(self.partitions if partitions is None else partitions),
            predecessor_gone=predecessor_gone,
            copier=copier,
        )
        copier_ = Copier(self, f"copier-{next(self._names)}", setup)
        self.copiers.append(copier_)
        self._loops = [(loop, one) for loop, one in self._loops if one is None or not one.is_dead]
        self._loops.append((copier_.loop, copier_))
        self.tell(copier_, "starts")
        return copier_

    def kill(self, copier: Copier, *, arrives_after_s: float = 0.0) -> None:
        """kill -9: its connections end; what it had sent arrives so much later, or never."""
        if copier.is_dead:
            return
        self.tell(copier, f"is killed; what it has sent arrives after {arrives_after_s:g} s")
        self.remember(copier)
        copier.is_dead = True
        for link in self.network.of_process(copier):
            link.cut(arrives_after_s=arrives_after_s)

    def freeze(self, copier: Copier, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after *seconds*: what it has sent arrives, what is sent to it waits."""
        if copier.is_dead or copier.is_frozen:
            return
        self.tell(copier, f"is frozen for {seconds:g} s")
        copier.is_frozen = True

        def thaw() -> None:
            if not copier.is_dead:
                self.tell(copier, "continues")
            copier.is_frozen = False

        self.after(seconds, thaw)

    def restart(
        self, copier: Copier, *, child: bool = True, settings: SourceSettings | None = None
    ) -> Copier:
        """Replaces a dead process by a new one; *child*: started by a parent that knows of the death."""
        return self.start(
            copier.setup.partitions,
            settings=settings or copier.setup.settings,
            copier=copier.copier_id if child else "",
            predecessor_gone=child,
        )

    async def stop(self, copier: Copier) -> None:
        """SIGTERM, and wait for its end."""
        self.tell(copier, "is asked to stop")
        copier.ask_to_stop()
        await self.until(lambda: copier.is_dead, timeout_s=60.0)

    def sleep_machine(self, copier: Copier, seconds: float) -> None:
        """The machine of *copier* is stopped for so long, with what it has not yet sent."""
        self.freeze(copier, seconds)
        for link in self.network.of_process(copier):
            link.hold(seconds)

    def copy_of(self, at: TopicPartition) -> PartitionLeader:
        """Who leads the copy of a source partition."""
        found = self.target.partition(TopicPartition(self.options.target_topic, at.partition))
        assert found is not None
        return found.leader

    def elect(self, at: TopicPartition, end: int, *, is_restarted: bool) -> None:
        """Another replica leads the copy, whose log ends at *end*; the old leader's broker dies, or lives on.

        Where there is one broker alone it is started again, so connections to it are lost all the same.
        """
        place = TopicPartition(self.options.target_topic, at.partition)
        found = self.target.partition(place)
        assert found is not None
        before = found.node_id
        found.leader.elect(end, is_restarted=is_restarted)
        self.target.move(place)
        if is_restarted or found.node_id == before:
            for link in self.network.of_broker(self.target, before):
                link.cut(arrives_after_s=NEVER_S)

    def target_end(self, at: TopicPartition) -> int:
        return self.copy_of(at).log.end

    def clean_target(self, at: TopicPartition) -> None:
        """The target's cleaner has come to the end of the copy."""
        leader = self.copy_of(at)
        contents = {
            record.offset: (record.key, record.value)
            for batch in leader.log.batches
            for record in batch.records
        }
        gone = leader.compact(leader.log.end)
        self.gone_from_target[at].update(contents[offset] for offset in gone)
        self.tell(None, f"the copy of {at} is cleaned: {len(gone)} records go")

    def remake_target(self) -> None:
        """The target topic is deleted, and there again."""
        topic = self.target.topics[self.options.target_topic]
        for at in self.partitions if self.options.on_loss is not LossPolicy.RESTART else ():
            for batch in self.copy_of(at).log.batches:
                self.gone_from_target[at].update((record.key, record.value) for record in batch.records)
        self.target.delete_topic(topic.name)
        self.target.create_topic(topic.name, len(topic.partitions), topic.configs)
        self.target_was_made_anew = True
        self.tell(None, "the target topic is made anew")

    def remake_source(self) -> None:
        """The source topic is deleted, and there again."""
        topic = self.source.topics[self.options.topic]
        for at in self.partitions:
            self.producer.lose_all(at)
        self.source.delete_topic(topic.name)
        self.source.create_topic(topic.name, len(topic.partitions), topic.configs)
        self.tell(None, "the source topic is made anew")

    def write_over_lost_tail(self, at: TopicPartition) -> None:
        """An unclean election of the copy, and a stranger's records at the offsets of what was lost."""
        leader = self.copy_of(at)
        end = self.draws.randint(leader.log.start, max(leader.log.start, leader.log.end))
        lost = leader.log.end - end
        self.elect(at, end, is_restarted=True)
        count = max(1, self.draws.randint(0, 2 * lost + 1))
        records = [Record(0, self.wall_ms, b"x", b"another's %d" % number) for number in range(count)]
        data = encode(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        leader.append(split(data)[0], self.wall_ms)
        self.tell(
            None, f"the copy of {at} loses {lost} offsets from {end}, others write {count} records there"
        )

    def empty_target(self, at: TopicPartition, *, is_restarted: bool) -> None:
        """Retention deletes the copies; with a restart the leader remembers no producer."""
        leader = self.copy_of(at)
        for batch in leader.log.batches:
            self.gone_from_target[at].update((record.key, record.value) for record in batch.records)
        leader.delete_before(leader.log.end)
        self.elect(at, leader.log.end, is_restarted=is_restarted)
        self.tell(None, f"the copy of {at} is emptied up to {leader.log.end}")

    def try_stranger(self, at: TopicPartition, *, records: int, epoch: int, ahead: int) -> None:
        """A stranger's batch, which the leader may refuse."""
        if not self.copy_of(at).producers.producers:
            return
        try:
            self.stranger(at, records=records, epoch=epoch, ahead=ahead)
        except RefusedError as error:
            self.tell(None, f"the stranger is refused: {error}")

    def stranger(self, at: TopicPartition, *, records: int, epoch: int = 0, ahead: int = 0) -> Appended:
        """A foreign client with the flow's producer id writes what would be the flow's next numbers."""
        leader = self.copy_of(at)
        ours = next(iter(leader.producers.producers.values()))
        data = encode(
            [Record(0, self.wall_ms, None, b"a stranger's %d" % number) for number in range(records)],
            codec=0,
            producer_id=ours.producer_id,
            producer_epoch=max(0, ours.epoch + epoch),
            base_sequence=max(0, ours.last_sequence + 1 + ahead),
        )
        self.had_stranger |= epoch >= 0  # one of a lower epoch is refused, and does nothing
        self.tell(None, f"a stranger writes {records} records from number {ours.last_sequence + 1 + ahead}")
        return leader.append(split(data)[0], self.wall_ms)

    @property
    def target_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.options.target_topic, at.partition) for at in self.partitions]

    def target_leaders(self) -> Iterator[PartitionLeader]:
        for at in self.target_partitions:
            found = self.target.partition(at)
            if found is not None:
                yield found.leader

    @property
    def alive(self) -> list[Copier]:
        return [one for one in self.copiers if not one.is_dead]

    # -- what happens to messages

    def may_arrive(self, message: Message) -> bool:
        """Whether *message* arrives now; a disturbance may hold it, or end its connection."""
        return self.disturbances.let_pass(message)

    def note(self, message: Message) -> None:
        """*message* has arrived."""
        if self.trace is not None:
            self.trace.message(message)

    # -- what copiers say

    def tell(self, copier: Copier | None, text: str) -> None:
        """A line for the trace."""
        if self.trace is not None:
            self.trace.line("world" if copier is None else copier.name, text)

    def mistake(self, copier: Copier, text: str) -> None:
        """Product code raised what it never should."""
        self.tell(copier, text)
        self.mistakes.append(f"{copier.name}: {text}")

    def ended(self, copier: Copier) -> None:
        self.tell(copier, "has ended")

    def remember(self, copier: Copier) -> None:
        """Keep what *copier* has reported: it may be gone when the run is judged."""
        for at, report in copier.reports().items():
            seen = self.seen.setdefault(at, Seen())
            seen.losses += report.losses
            seen.lost_records += report.lost_records
            if report.reason:
                seen.reasons.setdefault(report.reason, self.clock.now)

    def _script_failed(self, message: str, error: BaseException | None) -> None:
        raise RuntimeError(f"the script failed: {message}") from error

    # -- a whole run

    def play(self, script: Script, *, quiet_after_s: float = 120.0) -> Judgement:
        """Run *script*, heal, let the world run until it is quiet or *quiet_after_s* have passed, and judge it.

        Then some more records come, and are to be copied, too: a partition may be at its end and stand still all the same.
        """
        with simulated(self):
            try:
                playing = self._script_loop.create_task(_awaited(script(self)))
                while not playing.done():
                    if not self._step():
                        raise RuntimeError("the script waits for what will not come")
                playing.result()
                self.heal()
                if self._settle(quiet_after_s) and self.options.probes:
                    for at in self.partitions:
                        self.producer.append(at, PROBES, keys=PROBES, key_prefix=b"probe")
                    self._settle(quiet_after_s)
                for copier in self.alive:
                    self.remember(copier)
                return judge(self)
            finally:
                self._drop()

    def _settle(self, quiet_after_s: float) -> bool:
        """Let the world run until it is quiet; False where it is not in time."""
        end, look = self.clock.now + quiet_after_s, 0.0
        while self.clock.now < end and not self.mistakes:
            if self.clock.now >= look:
                if self._is_quiet():
                    return True
                look = self.clock.now + QUIET_LOOK_S
            if not self._step():
                break
        return False

    def heal(self) -> None:
        """End every disturbance; each partition has a copier."""
        self.tell(None, "-- everything is healed --")
        self.disturbances.end()
        for cluster in self.clusters.values():
            cluster.up = set(cluster.brokers)
            for topic in cluster.topics.values():
                for number, one in enumerate(topic.partitions):
                    for deposed in one.deposed.values():
                        deposed.step_down()
                    one.deposed.clear()
                    one.leader.lacks_replicas, one.leader.replicates = False, True
                    one.leader.replicate()
                    if one.node_id not in cluster.up:
                        cluster.move(TopicPartition(topic.name, number))
        for copier in self.alive:
            copier.is_frozen = False
        copied = {at for one in self.alive for at in one.setup.partitions if one.refused is None}
        for at in self.partitions:
            if at not in copied and self.copiers:
                newest = self.copiers[-1]
                self.start([at], settings=newest.setup.settings)

    def _is_quiet(self) -> bool:
        """Whether all is copied and nothing is on its way that could change that."""
        if not all(link.is_idle for link in self.network.links) or not self.target.coordinator.is_settled:
            return False
        for copier in self.alive:
            if copier.task is None or not copier.is_running:
                return False
        return all(is_settled(self, at) for at in self.partitions)

    def _drop(self) -> None:
        """Let go of all processes, so that nothing of this run is left."""
        for copier in self.copiers:
            copier.is_dead = True
        for copier in self.copiers:
            self.running = copier
            copier.loop.drop()
        self.running = None
        self._script_loop.drop()


async def _awaited(script: Awaitable[None]) -> None:
    await script
