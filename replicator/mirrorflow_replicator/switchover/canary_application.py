"""Runs an application beside a rehearsal: a producer and a consumer group of a canary topic, by clients that are not of this project.

The topic is one that the flow copies, and the group one that follows, so what the application sees is what others will see: refused
writes, the pause of its group, and where the group continues on the target. The clients block, so each has a thread.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.canary import CanaryRequest, CanaryResult, continued_from
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.application_clients import ApplicationCluster, client_version
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_group_selection, make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.switchover.canary_notes import CanaryNotes
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
# So many records of its topic, or more, show that a group was not moved; each is counted one by one.
READ_AGAIN_MAX: Final = 100_000
# Fences that do not refuse the canary's writes: a NetworkPolicy lets the pod of the Switchover through.
_NOT_REFUSING: Final = frozenset({FenceKind.NONE, FenceKind.NETWORK_POLICY})
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
        self._notes = CanaryNotes(now)
        self._source_offset: int | None = None
        self._continued: tuple[int, int] | None = None  # records that were read again, and skipped
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"canary-{work.__name__}", daemon=True)
            for work in (self._write, self._consume, self._watch)
        ]

    def start(self) -> None:
        """Starts to write and to read on the source."""
        for thread in self._threads:
            thread.start()

    def wait_until_copied(self, timeout_s: float) -> None:
        """Waits until the flow has copied a record of this run, at most until `stop`. Raises CanaryFailedError."""
        deadline_s = self._now() + timeout_s
        while not self._copied.wait(WATCH_EVERY_S):
            if self._notes.problem:
                raise CanaryFailedError(problem=self._notes.problem)
            # Otherwise the thread that waits would keep a process alive that is to end.
            if self._stopping.is_set():
                raise CanaryFailedError(problem="it was stopped before its topic was copied")
            if self._now() >= deadline_s:
                raise CanaryFailedError(
                    problem=f"{self._target.alias} has no new record of topic {self._topic} after {timeout_s:.0f} s "
                    f"({self._notes.acknowledged_records} were acknowledged by {self._source.alias}); the flow copies it once it has found the topic "
                    "(refresh.topics.interval.seconds)"
                )

    def note(self, state: SwitchoverState) -> None:
        """Notes when *state* was shown for the first time."""
        self._notes.note_state(state)

    def finish(self, state: SwitchoverState) -> CanaryResult:
        """Reads on the target where the rehearsal has succeeded, and stops; *state* is how it ended. Raises nothing for a canary that fails."""
        if state is SwitchoverState.REHEARSED and not self._notes.problem:
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
            self._notes.note_problem(str(error))
        except Exception as error:  # noqa: BLE001 a thread that ends without a word would leave the others, and the user, to wait for it
            self._notes.note_problem(
                f"The canary's thread {work.__name__.strip('_')} has ended with an error that is not expected: {type(error).__name__}: {error}"
            )

    def _write(self) -> None:
        producer, number = self._source.producer(), 0
        while not self._stopping.wait(WRITE_EVERY_S):
            if self._stops_by_itself and self._notes.is_refusing:
                continue
            error = producer.write(self._topic, f"{self._run} {number}".encode())
            if error:
                self._notes.note_refused(error)
            else:
                self._notes.note_acknowledged(number)
            if error in _REFUSALS:
                if not self._notes.is_fencing:
                    self._notes.note_problem(
                        f"A write to {self._topic} on {self._source.alias} was refused before the fence ({error}): allow it to the probe."
                    )
                    return
                continue  # it is repeated; one that has failed otherwise may have been written, so it is not
            number += 1

    def _consume(self) -> None:
        consumer = self._source.consumer(self._group)
        try:
            consumer.join(self._topic)
            while not self._stopping.is_set():
                values = consumer.read(READ_S)
                self._notes.note_read(number for number in self._numbers(values) if number is not None)
                if values:
                    consumer.commit()
                if self._notes.has_read_all(SILENT_S):
                    break
            self._source_offset = consumer.committed(self._topic)
        finally:
            consumer.close()
            self._notes.note_once("left")

    def _watch(self) -> None:
        consumer = self._target.consumer(self._group)
        try:
            before = consumer.end(self._topic) or 0
            while not self._stopping.wait(WATCH_EVERY_S):
                if not self._copied.is_set():
                    if self._notes.acknowledged_records and (consumer.end(self._topic) or 0) > before:
                        self._notes.note_once("copied")
                        self._copied.set()
                    continue
                offset = consumer.committed(self._topic)
                if offset is not None:
                    self._notes.note_target_offset(offset)
        finally:
            consumer.close()

    def _continue_on_target(self) -> None:
        """Reads as a member of the group on the target, and commits nothing: the group stays where the rehearsal has placed it."""
        last_read = self._notes.last_read
        if last_read is None:
            raise CanaryFailedError(problem=f"group {self._group} has read nothing on {self._source.alias}")
        consumer, expected, deadline_s = (
            self._target.consumer(self._group),
            last_read + 1,
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
                if len(numbers) > READ_AGAIN_MAX:
                    raise CanaryFailedError(
                        problem=f"group {self._group} has read more than {READ_AGAIN_MAX:,} records again on {self._target.alias}"
                    )
        finally:
            consumer.close()
        self._notes.note_once("continued")
        self._continued = continued_from(expected, numbers)

    # -- what is known

    def _numbers(self, values: Iterable[bytes]) -> list[int | None]:
        """Returns the numbers of this run in *values*; None for a record of another one."""
        parts = [value.decode(errors="replace").partition(" ") for value in values]
        return [int(number) if run == self._run else None for run, _, number in parts]

    def _result(self, state: SwitchoverState) -> CanaryResult:
        again, skipped = (None, None) if self._continued is None else self._continued
        notes = self._notes
        problem = notes.problem
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
            timeline=notes.timeline(),
            acknowledged_records=notes.acknowledged_records,
            refused_writes=notes.refused_writes,
            refused_with=notes.refused_with,
            read_records=notes.read_records,
            source_offset=self._source_offset,
            target_offset=notes.target_offset,
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
        *clusters, topic=topic, group=group, stops_by_itself=settings.fence in _NOT_REFUSING
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


@contextlib.asynccontextmanager
async def started_canary(
    settings: SwitchoverSettings, request: CanaryRequest
) -> AsyncIterator[CanaryApplication]:
    """Runs the application meanwhile. When this begins, it reads and writes, and its topic is copied; nothing is fenced before.

    Raises CanaryFailedError, MirrorFlowError, and ModuleNotFoundError where confluent-kafka is not installed.
    """
    canary = canary_application(settings, topic=request.topic, group=request.group)
    await create_canary_topic(settings, request.topic)
    canary.start()
    try:
        await asyncio.to_thread(canary.wait_until_copied, copy_limit_s(settings))
        yield canary
    finally:
        await asyncio.to_thread(canary.stop)


def copy_limit_s(settings: SwitchoverSettings) -> float:
    """Returns how long the flow may take to find the topic and to copy it."""
    return COPY_S + (settings.forward.refresh_topics_s or 0.0)
