"""The process of one task: connects at once, copies its assigned partitions, and reports what has changed.

It reads messages from stdin, writes reports to stdout and logs to stderr, and ends with its parent. Clusters
that are unreachable, or refuse us, are retried for ever with the error in the report: credentials and
networks recover.
"""

import asyncio
import logging
import os
import sys
from dataclasses import replace
from functools import partial

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, TaskReport
from mirrorflow_kafka.client.background_tasks import report_failure
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_kafka.stores.position_store import position_store
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator import logs, process
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.source_properties import for_task
from mirrorflow_replicator.connectors.connector_state import ClusterClients
from mirrorflow_replicator.connectors.report_lines import encode_report
from mirrorflow_replicator.connectors.task_messages import (
    Assign,
    Begin,
    Finish,
    Message,
    SetLogLevel,
    Stop,
    WriteReplays,
    read,
)
from mirrorflow_replicator.copy.task_parts import KnownSchemas, SessionParts, flow_topics
from mirrorflow_replicator.copy.task_session import TaskSession
from mirrorflow_replicator.copy.task_session_factory import start_task_session
from mirrorflow_replicator.process import die_with_parent

STOP_WAIT_S = 1.0  # for work in progress when a stop arrives; an assignment takes milliseconds
REPORT_S = 0.5  # interval of reports
RETRY_MIN_S, RETRY_MAX_S = 0.5, 15.0  # while a cluster cannot be used
CONNECT_TIMEOUT_S = 15.0

log = logging.getLogger("mirrorflow.task")


class TaskProcess:
    """Serves the messages of the worker for one task."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._settings = for_task(begin.settings, begin.task)
        self._resolver = Resolver(begin.settings.providers)
        self._task: TaskSession | None = None
        self._failure: MirrorFlowError | None = None
        self._clusters: tuple[Cluster, ...] = ()  # both, once they are connected
        self._sides = ClusterClients(begin.settings.source_alias, begin.settings.target_alias)
        self._changing = asyncio.Lock()
        self._sessions_ended = 0
        self._earlier_copiers: dict[TopicPartition, PartitionCopier] = {}
        self._end_reason: str | None = None
        self._acknowledged: tuple[AcknowledgedPosition, ...] = ()
        self._log_append_time_topics: set[str] = set()
        self._known_schemas = KnownSchemas()
        self._ending: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(
            maxsize=16
        )  # a worker sends one a minute at most

    async def serve(self, stream: asyncio.StreamReader) -> None:
        """Carries out messages until a stop arrives or the worker is gone."""
        warm = asyncio.create_task(self._connect())
        reporting = asyncio.create_task(self._report(), name="report")
        reporting.add_done_callback(report_failure)
        receiving = asyncio.create_task(self._receive(stream))
        serving = asyncio.create_task(self._carry_out(warm))
        try:
            # A stop takes effect while a connection attempt to an unresponsive cluster is still running.
            await asyncio.wait({serving, receiving}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({serving}, timeout=STOP_WAIT_S)
            if serving.done():
                serving.result()
        finally:
            for job in (serving, warm, reporting, receiving, self._opening):
                if job is not None:
                    job.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if self._task is not None:
                await self._task.stop()
                self._send(self._task.report(whole=True))

    async def _receive(self, stream: asyncio.StreamReader) -> None:
        while True:
            match message := await read(stream):
                case SetLogLevel():
                    logs.apply(message.logger, message.level)
                case WriteReplays():
                    if self._task is not None:
                        self._task.write_replays()
                case _:
                    await self._messages.put(message)
                    if message is None or isinstance(message, Stop):
                        return

    async def _carry_out(self, warm: asyncio.Task[tuple[Cluster, Cluster]]) -> None:
        """Follows the newest assignment until a stop arrives."""
        clusters, messages = await warm, self._messages
        while isinstance(message := await messages.get(), Assign | Finish):
            while messages.qsize():
                later = messages.get_nowait()
                if not isinstance(later, Assign | Finish):
                    return
                if isinstance(message, Assign):
                    # It ends before it has begun. The worker waits for that end, and has stored what was acknowledged before.
                    self._sessions_ended += 1
                    self._acknowledged = ()
                message = later
            match message:
                case Finish():
                    await self._end_session(self._sessions_ended, leaves=True, why=None)
                case Assign():
                    await self._assign(clusters, message)

    async def _end_session(self, number: int, *, leaves: bool, why: str | None) -> None:
        """Ends session *number* of the task, unless it has ended; the worker then sends the start of the next one.

        A session ends when it was fenced, or cannot determine which of its writes are in the target. *leaves*: it finishes first. *why* None: the worker has asked for it.
        """
        async with self._changing:
            task = self._task
            if task is None or number != self._sessions_ended:
                return
            if why is not None:
                log.warning("Restarting the task: %s", why)
            self._earlier_copiers |= task.copiers
            # Where nothing can be fenced, the next session finds only what is stored.
            await task.end(leaves=leaves or not task.is_fenced)
            self._task, self._end_reason, self._acknowledged = None, why, task.acknowledged()
            self._sessions_ended += 1

    def _end_soon(self, number: int, why: str) -> None:
        ending = asyncio.create_task(self._end_session(number, leaves=False, why=why))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _connect(self) -> tuple[Cluster, Cluster]:
        attempts = Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S)
        while True:
            await anext(attempts)
            try:
                clusters = await connect_both(
                    self._settings.source_consumer,
                    self._settings.target_producer,
                    resolve=self._resolver.resolve_client,
                    timeout_s=CONNECT_TIMEOUT_S,
                    note=self._sides.note,
                )
            except MirrorFlowError as error:
                self._note(error)
            else:
                for cluster in clusters:
                    self._sides.connected(cluster)
                self._clusters, self._failure = clusters, None
                self._opening = asyncio.create_task(self._open_connections(clusters))
                return clusters

    async def _open_connections(self, clusters: tuple[Cluster, Cluster]) -> None:
        """Opens a connection to a broker of each cluster, which the first assignment needs."""
        for result in await asyncio.gather(
            *(cluster.refresh([]) for cluster in clusters), return_exceptions=True
        ):
            if isinstance(result, MirrorFlowError):
                log.info("%s", result)  # the request that needs it tries again, and reports it
            elif isinstance(result, BaseException):
                raise result

    def _note(self, error: MirrorFlowError) -> None:
        """Keeps *error* for the report, but logs it only if its cause is new.

        The text of a lost connection's error differs at each attempt.
        """
        if self._failure is None or _cause(error) != _cause(self._failure):
            log.warning("%s", error)
        self._failure = error

    async def _assign(self, clusters: tuple[Cluster, Cluster], message: Assign) -> None:
        ended = self._sessions_ended
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            if self._task is not None and not self._messages.empty():
                return  # the session may have to end, or copies other partitions, before a cluster answers
            try:
                async with self._changing:
                    if ended != self._sessions_ended:
                        return  # another session with this start would write under sequences and epochs that were used
                    task = self._task or await self._begin_task(clusters, message)
                    self._task = task
                await task.assign(message.assignment.partitions, bytes_per_s=message.assignment.bytes_per_s)
            except MirrorFlowError as error:
                self._note(error)
            else:
                self._failure = None
                return

    async def _begin_task(self, clusters: tuple[Cluster, Cluster], message: Assign) -> TaskSession:
        topics, target = flow_topics(self._settings), clusters[1]
        store = position_store(self._settings, target)
        if message.start.unfenced_reason is not None:
            await store.open()
        session = SessionParts(
            start=message.start,
            transactions=ProducerTransactions(
                target, topics, sequences=message.sequences, timeout_ms=message.transaction_timeout_ms
            ),
            earlier=self._earlier_copiers,
            log_append_time_topics=self._log_append_time_topics,
            known_schemas=self._known_schemas,
            end=partial(self._end_soon, self._sessions_ended),
            offsets_topic=message.offsets_topic,
        )
        return await start_task_session(
            self._settings,
            clusters,
            store,
            resolve=self._resolver.resolve_client,
            task=self._begin.task,
            session=session,
        )

    async def _report(self) -> None:
        while True:
            failure = self._failure
            if failure is not None:
                # A session whose new partitions cannot be connected yet reports them, and may copy others.
                report = (
                    TaskReport(task=self._begin.task, state="FAILED")
                    if self._task is None
                    else self._with_warnings(self._task.report())
                )
                self._send_report(replace(report, state="FAILED", trace=str(failure), reason=failure.reason))
            elif self._task is None:
                state = "RESTARTING" if self._sessions_ended else "UNASSIGNED"
                self._send_report(TaskReport(task=self._begin.task, state=state, trace=self._end_reason))
            else:
                self._send_report(self._with_warnings(self._task.report()))
            await asyncio.sleep(REPORT_S)

    def _with_warnings(self, report: TaskReport) -> TaskReport:
        """Adds the warnings that connections have about their secrets to the task's."""
        warnings = dict.fromkeys(warning for cluster in self._clusters for warning in cluster.warnings)
        return replace(report, warnings=(*report.warnings, *warnings)) if warnings else report

    def _send_report(self, report: TaskReport) -> None:
        source, target = self._sides.reports(self._clusters)
        ended, acknowledged = self._sessions_ended, self._acknowledged if self._task is None else ()
        self._send(
            replace(report, source=source, target=target, sessions_ended=ended, acknowledged=acknowledged)
        )

    def _send(self, report: TaskReport) -> None:
        sys.stdout.buffer.write(encode_report(report))
        sys.stdout.buffer.flush()


async def run() -> None:
    """Runs a task process from its first message to its end."""
    stream = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_fail)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
    # An empty line reports that all imports are done: the owner of a warm process waits for it.
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    begin = await read(stream)
    if isinstance(begin, Begin):
        await TaskProcess(begin).serve(stream)


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Ends the process after an unexpected exception (a bug); the worker starts a new one, which resumes."""
    loop.default_exception_handler(context)
    if context.get("exception") is not None:
        logging.shutdown()
        os._exit(70)


def main() -> int:
    """The entry point of a task process."""
    die_with_parent()
    process.tune_memory()
    asyncio.run(run())
    return 0


def _cause(error: MirrorFlowError) -> tuple[str, str]:
    return error.reason, error.cluster if isinstance(error, ClusterError) else str(error)
