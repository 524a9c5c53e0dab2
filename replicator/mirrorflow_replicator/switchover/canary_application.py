"""Runs an application beside a rehearsal: a producer and a consumer group of a canary topic, by clients that are not of this project.

The topic is one that the flow copies, and the group one that follows, so what the application sees is what others will see: refused
writes, the pause of its group, and where the group continues on the target. The clients block, so each has a thread.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.canary import CanaryResult, CanaryTimeline, continued_from
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.application_clients import ApplicationCluster, client_version
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_group_selection, make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.switchover.errors import CanaryFailedError
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings

# Fifty records a second: the pause that an application sees is measured to 20 ms.
WRITE_EVERY_S: Final = 0.02
WATCH_EVERY_S: Final = 0.05
READ_S: Final = 0.1
# Where a fence leaves writes without a response, they have ended when none was acknowledged for so long.
SILENT_S: Final = 1.0
# The flow looks for new topics from time to time; then it has to create the copy, and to copy.
COPY_S: Final = 60.0
CONTINUE_S: Final = 60.0  # to join the group on the target, and to be copied
JOIN_S: Final = 60.0
_REFUSALS: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})


class CanaryApplication:
    """The application. `note` takes the states of the rehearsal; `result` is complete after `finish`."""

    def __init__(
        self,
        source: ApplicationCluster,
        target: ApplicationCluster,
        *,
        topic: str,
        group: str,
        stops_by_itself: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """*stops_by_itself*: nothing refuses writes, so the producer stops while they are to be refused."""
        self._source, self._target = source, target
        self._topic, self._group = topic, group
        self._stops_by_itself = stops_by_itself
        self._now = now
        self._run = secrets.token_hex(4)
        self._client = client_version()
        self._stopping = threading.Event()
        self._copied = threading.Event()
        self._states: dict[SwitchoverState, float] = {}
        self._acknowledged: list[tuple[int, float]] = []
        self._refusals: list[tuple[str, float]] = []
        self._read: list[int] = []
        self._offsets: list[tuple[int, float]] = []  # of the group on the target, whenever it has changed
        self._copied_s: float | None = None
        self._left_s: float | None = None
        self._source_offset: int | None = None
        self._continued: tuple[int, int, float] | None = None  # read again, skipped, when
        self._problems: list[str] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"canary-{work.__name__}", daemon=True)
            for work in (self._write, self._consume, self._watch)
        ]

    def start(self) -> None:
        """Starts to write and to read on the source."""
        for thread in self._threads:
            thread.start()

    def wait_until_copied(self, timeout_s: float) -> None:
        """Waits until the flow has copied a record of this run. Raises CanaryFailedError."""
        deadline_s = self._now() + timeout_s
        while not self._copied.wait(WATCH_EVERY_S):
            if self._problems:
                raise CanaryFailedError(problem=self._problems[0])
            if self._now() >= deadline_s:
                raise CanaryFailedError(
                    problem=f"{self._target.alias} has no new record of topic {self._topic} after {timeout_s:.0f} s "
                    f"({len(self._acknowledged)} were acknowledged by {self._source.alias}); the flow copies it once it has found the topic "
                    "(refresh.topics.interval.seconds)"
                )

    def note(self, state: SwitchoverState) -> None:
        """Notes when *state* was shown for the first time."""
        self._states.setdefault(state, self._now())

    def finish(self, state: SwitchoverState) -> CanaryResult:
        """Reads on the target where the rehearsal has succeeded, and stops; *state* is how it ended. Raises nothing for a canary that fails."""
        if state is SwitchoverState.REHEARSED and not self._problems:
            self._guarded(self._continue_on_target)
        self.stop()
        return self._result(state)

    def stop(self) -> None:
        """Stops all clients."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(JOIN_S)

    # -- threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except MirrorFlowError as error:
            self._problems.append(str(error))

    def _write(self) -> None:
        producer, number = self._source.producer(), 0
        while not self._stopping.wait(WRITE_EVERY_S):
            if self._stops_by_itself and self._is_refusing:
                continue
            error = producer.write(self._topic, f"{self._run} {number}".encode())
            if error in _REFUSALS:
                self._refusals.append((error, self._now()))
                if SwitchoverState.FENCING not in self._states:
                    self._problems.append(
                        f"A write to {self._topic} on {self._source.alias} was refused before the fence ({error}): allow it to the probe."
                    )
                    return
                continue
            if error:
                self._refusals.append((error, self._now()))  # it may have been written, so it is not repeated
            else:
                self._acknowledged.append((number, self._now()))
            number += 1

    def _consume(self) -> None:
        consumer = self._source.consumer(self._group)
        try:
            consumer.join(self._topic)
            while not self._stopping.is_set():
                values = consumer.read(READ_S)
                self._read += [number for number in self._numbers(values) if number is not None]
                if values:
                    consumer.commit()
                if self._has_read_all():
                    break
            self._source_offset = consumer.committed(self._topic)
        finally:
            consumer.close()
            self._left_s = self._now()

    def _watch(self) -> None:
        consumer = self._target.consumer(self._group)
        try:
            before = consumer.end(self._topic) or 0
            while not self._stopping.wait(WATCH_EVERY_S):
                if not self._copied.is_set():
                    if self._acknowledged and (consumer.end(self._topic) or 0) > before:
                        self._copied_s = self._now()
                        self._copied.set()
                    continue
                offset = consumer.committed(self._topic)
                if offset is not None and (not self._offsets or self._offsets[-1][0] != offset):
                    self._offsets.append((offset, self._now()))
        finally:
            consumer.close()

    def _continue_on_target(self) -> None:
        """Reads as a member of the group on the target, and commits nothing: the group stays where the rehearsal has placed it."""
        if not self._read:
            raise CanaryFailedError(problem=f"group {self._group} has read nothing on {self._source.alias}")
        consumer, expected, deadline_s = (
            self._target.consumer(self._group),
            max(self._read) + 1,
            self._now() + CONTINUE_S,
        )
        numbers: list[int | None] = []
        try:
            consumer.join(self._topic)
            while not any(number is not None and number >= expected for number in numbers):
                if self._now() >= deadline_s:
                    raise CanaryFailedError(
                        problem=f"group {self._group} has read no new record of {self._topic} on {self._target.alias} within {CONTINUE_S:.0f} s"
                    )
                numbers += self._numbers(consumer.read(READ_S))
        finally:
            consumer.close()
        again, skipped = continued_from(expected, numbers)
        self._continued = again, skipped, self._now()

    # -- what is known

    @property
    def _is_refusing(self) -> bool:
        return SwitchoverState.FENCING in self._states and SwitchoverState.ROLLING_BACK not in self._states

    def _has_read_all(self) -> bool:
        """Returns whether writes have ended behind the fence, and the group has read what was acknowledged."""
        if not self._is_refusing:
            return False
        since_s = max(
            self._states[SwitchoverState.FENCING], self._acknowledged[-1][1] if self._acknowledged else 0.0
        )
        has_ended = bool(self._refusals) or self._now() - since_s >= SILENT_S
        return has_ended and {number for number, _ in [*self._acknowledged]} <= set(self._read)

    def _numbers(self, values: Iterable[bytes]) -> list[int | None]:
        """Returns the numbers of this run in *values*; None for a record of another one."""
        parts = [value.decode(errors="replace").partition(" ") for value in values]
        return [int(number) if run == self._run else None for run, _, number in parts]

    def _timeline(self) -> CanaryTimeline:
        fencing_s = self._states.get(SwitchoverState.FENCING)
        lifting_s = self._states.get(SwitchoverState.ROLLING_BACK)
        acknowledged_s = [at_s for _, at_s in self._acknowledged]
        # Between the request and the moment in which brokers enforce it, writes are still accepted.
        refused_s = min((at_s for _, at_s in self._refusals), default=None)
        closed_s = refused_s if refused_s is not None else fencing_s
        after_s = [at_s for at_s in acknowledged_s if closed_s is not None and at_s > closed_s]
        before_s = [at_s for at_s in acknowledged_s if at_s not in after_s]
        moved_s = [at_s for _, at_s in self._offsets if lifting_s is None or at_s <= lifting_s]
        return CanaryTimeline(
            first_acknowledged=acknowledged_s[0] if acknowledged_s else None,
            copied=self._copied_s,
            fencing=fencing_s,
            last_acknowledged=before_s[-1] if fencing_s is not None and before_s else None,
            refused=refused_s,
            left=self._left_s,
            offset_moved=moved_s[-1] if fencing_s is not None and moved_s else None,
            rolling_back=lifting_s,
            accepted=after_s[0] if lifting_s is not None and after_s else None,
            continued=None if self._continued is None else self._continued[2],
        )

    def _result(self, state: SwitchoverState) -> CanaryResult:
        again, skipped = (None, None) if self._continued is None else self._continued[:2]
        problem = self._problems[0] if self._problems else ""
        if not problem and (again or skipped):
            problem = (
                f"Group {self._group} has read {again} records again on {self._target.alias}, and has skipped {skipped}; neither may happen "
                "to a group whose offsets were moved exactly."
            )
        if not problem and again is None:
            problem = f"The rehearsal has ended in {state.value}, so where group {self._group} continues was not read."
        return CanaryResult(
            topic=self._topic,
            group=self._group,
            client=self._client,
            timeline=self._timeline(),
            acknowledged_records=len(self._acknowledged),
            refused_writes=len(self._refusals),
            refused_with=self._refusals[0][0] if self._refusals else "",
            read_records=len(set(self._read)),
            source_offset=self._source_offset,
            target_offset=self._offsets[-1][0] if self._offsets else None,
            read_again=again,
            skipped=skipped,
            problem=problem,
        )


def why_not_selected(settings: SwitchoverSettings, topic: str, group: str) -> str:
    """Returns why the flow would not copy *topic*, or *group* would not follow; "": both are selected. Raises SettingError."""
    flow = settings.forward.flow
    if not make_selection(settings.forward).selects(topic):
        return f"flow {flow} does not copy topic {topic}; name one that spec.topics of both flows selects"
    if settings.forward_groups is None or not make_group_selection(settings.forward_groups).selects(group):
        return f"group {group} does not follow flow {flow}; name one that spec.groups selects"
    return ""


def canary_application(settings: SwitchoverSettings, *, topic: str, group: str) -> CanaryApplication:
    """Returns the application of a rehearsal, not started yet; it logs in as the probes of the pair.

    Raises SettingError, CanaryFailedError, ModuleNotFoundError where confluent-kafka is not installed.
    """
    source, target = settings.probe, settings.target_probe
    if source is None or target is None:
        alias = settings.source if source is None else settings.to
        raise CanaryFailedError(
            problem=f"spec.members.{alias}.probe is missing, as which the canary's application logs in; write an application's identity there"
        )
    clusters = [
        ApplicationCluster(client, Resolver(flow.providers).resolve_client(client.properties))
        for client, flow in ((source, settings.forward), (target, settings.back))
    ]
    return CanaryApplication(
        *clusters, topic=topic, group=group, stops_by_itself=settings.fence is FenceKind.NONE
    )


async def create_canary_topic(settings: SwitchoverSettings, topic: str) -> None:
    """Creates *topic* with one partition on the source, as the user of the flow back, if it is not there. Raises MirrorFlowError."""
    back = settings.back
    cluster = await Cluster.connect(back.target_admin, resolve=Resolver(back.providers).resolve_client)
    try:
        await cluster.refresh([topic])
        if cluster.leader(*TopicPartition(topic, 0)) is None:
            new = admin.NewTopic(
                name=topic, partitions=1, replication_factor=back.replication_factor, configs={}
            )
            await admin.create_topic_and_wait(cluster, new)
        elif len(cluster.metadata.topics[topic].partitions) > 1:
            raise CanaryFailedError(
                problem=f"topic {topic} has several partitions; name a topic with one, or one that does not exist"
            )
    finally:
        await cluster.close()


def copy_limit_s(settings: SwitchoverSettings) -> float:
    """Returns how long the flow may take to find the topic and to copy it."""
    return COPY_S + (settings.forward.refresh_topics_s or 0.0)
