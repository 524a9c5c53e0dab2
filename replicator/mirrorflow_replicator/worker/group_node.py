"""One node of a group of distributed workers, which share connectors and tasks.

    config topic <── leader: connectors, task configs, session key            every node: read each second ──> its part
         ^── a follower's tasks, signed, over HTTP; a client's writing call, forwarded ──┘

The leader assigns the parts. The guarantees of `worker.distributed_herder` hold whichever node receives the
call. The config topic keeps config provider references as the user wrote them, because each node resolves
them itself. A node's part follows the newest properties within about a second. A call that arrives during a
rebalance is answered with 409 and can be retried. `worker.group_member` is the node's membership of the
group.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.connect.session_keys import ConnectError, SessionKey, check, is_due
from mirrorflow_core.connect.worker_records import ConfigRecord, RestartRequest, TargetState, WorkerState
from mirrorflow_core.errors import FilesDifferError, NotAuthorizedError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings, GroupSettings, SessionKeySettings
from mirrorflow_kafka.client.cancellation import together
from mirrorflow_kafka.stores.group_membership import Membership
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.config.connector_classes import SOURCE_CONNECTOR, simple_name
from mirrorflow_replicator.connectors.child_process import WarmProcess
from mirrorflow_replicator.connectors.connector_host import RunningConnector, create_connector
from mirrorflow_replicator.http.commands import Command, Fence, PutTasks, Restart, RestartTask
from mirrorflow_replicator.http.commands import task_configs as posted_tasks
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker import config_decisions
from mirrorflow_replicator.worker.group_context import GroupContext
from mirrorflow_replicator.worker.group_member import POLL_S, GroupMember
from mirrorflow_replicator.worker.herder import RUNNING, States, with_state
from mirrorflow_replicator.worker.internal_rest import PeerClient, TasksChangedError
from mirrorflow_replicator.worker.local_connectors import LocalConnectors, read_config_topic
from mirrorflow_replicator.worker.shared_connectors import SharedConnector, SharedTask, TaskShare, share_of
from mirrorflow_replicator.worker.status_writer import SharedStatuses
from mirrorflow_replicator.worker.task_config_writer import TaskConfigWriter
from mirrorflow_replicator.worker.task_fencing import TaskFencing
from mirrorflow_replicator.worker.worker_node import NodeContext, WorkerNode, WorkerTopics

WARM_UP_MAX_S = 10.0  # for a new node to connect and to start a process; then it joins the group in any case
NO_LEADER = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)

log = logging.getLogger("mirrorflow.group")


class GroupNode:
    """One node of *group*, which the other nodes reach at *url*."""

    def __init__(self, context: NodeContext, topics: WorkerTopics, group: GroupSettings, url: str) -> None:
        self._topics = topics
        self._configs = topics.configs
        self._files = context.distributed.seeds
        self._samples = context.samples
        self._grace_s = context.settings.shutdown_s
        self._group = group
        self._url = url
        self._warm_process = WarmProcess()
        self._peers = PeerClient(context.settings, group)
        self._member = GroupMember(
            Membership(topics.cluster, group),
            group,
            url=url,
            configs=topics.configs,
            read=self.read_on,
            follow=self._follow,
        )
        self._leader = GroupLeader(topics.configs, group.keys, self._files)
        self._statuses = SharedStatuses(topics.statuses, worker_id=context.worker_id)
        self._group_context = GroupContext(
            cluster=topics.cluster,
            configs=topics.configs,
            member=self._member,
            peers=self._peers,
            read=self.read_on,
        )
        self._writer = TaskConfigWriter(self._group_context, arrange=self.arrange)
        self.connectors = LocalConnectors(
            topics.configs.configs,
            context.distributed.worker,
            host=self._host,
            runs_here=self._runs_here,
            grace_s=self._grace_s,
            label=context.label,
        )
        self._membership: asyncio.Task[None] | None = None  # runs from the time the node is warm
        self._stopping = False

    @classmethod
    async def begin(
        cls, context: NodeContext, topics: WorkerTopics, *, group: GroupSettings, url: Callable[[], str]
    ) -> WorkerNode:
        return cls(context, topics, group, url())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable statuses, an error of the membership, and files that differ from the config topic."""
        errors = [str(error) for error in (self._member.problem, self._leader.problem) if error is not None]
        return (*self._statuses.warnings, *errors)

    @property
    def is_rebalancing(self) -> bool:
        return self._member.is_rebalancing

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node's part has started; a node without a part is ready."""
        if not self._member.leader_url or self._member.problem is not None:
            return False
        mine = [report for report in reports if report.is_here or any(task.is_here for task in report.tasks)]
        tasks = [task for report in mine for task in report.tasks if task.is_here]
        begun = all(task.state in {"RUNNING", "PAUSED", "STOPPED"} for task in tasks)
        return begun and all(report.has_reported_all for report in mine)

    async def run(self) -> None:
        await together(
            [asyncio.create_task(self.connectors.run()), asyncio.create_task(self._join_when_warm())]
        )

    async def _join_when_warm(self) -> None:
        await self._warm_up()
        self._membership = asyncio.create_task(self._member.run(), name="node")
        await asyncio.wait({self._membership})
        if not self._membership.cancelled():
            self._membership.result()
        await asyncio.Event().wait()  # it was cancelled, in order to leave

    async def _warm_up(self) -> None:
        """Connects and starts a process first, because another node copies what the group will assign to this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WARM_UP_MAX_S):
                await self._warm_process.ready()
        for _ in range(round(WARM_UP_MAX_S / POLL_S)):
            hosted = self.connectors.hosted.values()
            if all(
                connector is not None and (not isinstance(connector, SharedConnector) or connector.is_warm)
                for connector in hosted
            ):
                return
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Stops this node's part gracefully, writes its last statuses and leaves the group.

        Other nodes can then take over at once.
        """
        self._stopping = True
        await asyncio.gather(self.connectors.stop(), self._warm_process.close())
        await self._statuses.write_final()
        if self._membership is not None:
            self._membership.cancel()
            await asyncio.wait({self._membership})
            await self._member.leave()

    def set_states(self, states: States) -> None:
        """Changes the states in our files, which the leader writes to the config topic."""
        if states:
            self._leader.renew([with_state(file, states.get(file["name"], RUNNING)) for file in self._files])

    # -- topics

    async def read_on(self) -> None:
        records = await read_config_topic(self._configs)
        for record in records:
            if isinstance(record, RestartRequest):
                self._restart_here(record)
        if records:
            self._leader.note_files()
            self.arrange()

    async def publish(self) -> None:
        node, configs = self._member, self._configs.configs
        settled = node.leads and not node.is_rebalancing
        if settled:
            await self._leader.lead()
        if not node.is_rebalancing:
            self._leader.compare()
        await self._statuses.publish(
            [self.connectors.report(name) for name in configs.connectors],
            held=node.held,
            wanted=config_decisions.units(configs) if settled else None,
            generation=node.generation,
        )

    # -- what runs here

    async def _follow(self) -> None:
        """Starts what is held; returns when everything else has stopped."""
        if self._member.leads:
            if self._leader.is_new:
                await self._fence_leader()
            await self._leader.lead()
        else:
            self._leader.follow()
        self.arrange()
        await self.connectors.settled()
        for hosted in [*self.connectors.hosted.values()]:
            if isinstance(hosted, SharedConnector | SharedTask):
                await hosted.settled()

    async def _fence_leader(self) -> None:
        """Fences an earlier leader that is a Java worker: it may be a zombie.

        Java's leader writes to the config topic in transactions where its tasks write in transactions.
        """
        if self._configs.configs.fenced:
            try:
                await self._peers.fence_leader(self._topics.cluster)
            except NotAuthorizedError as error:
                log.warning("An earlier leader that is a Java worker is not fenced: %s", error)

    def arrange(self) -> None:
        self.connectors.arrange()
        for name, hosted in self.connectors.hosted.items():
            if isinstance(hosted, SharedConnector | SharedTask) and not self._stopping:
                hosted.share(self._share(name))
        self._member.rejoin_if_due()

    def _runs_here(self, name: str, wanted: config_decisions.Wanted) -> bool:
        return name in {unit.connector for unit in self._member.held} or _is_standby(wanted)

    def _share(self, name: str) -> TaskShare:
        return share_of(name, self._configs.configs.tasks.get(name, ()), self._member.held)

    def _host(self, name: str, settings: ConnectorSettings) -> RunningConnector:
        """Returns a host that runs this node's part of connector *name*."""
        if not settings.is_enabled:
            return create_connector(settings, samples=self._samples)
        hosted = self._shared_host(name, settings)
        # At once, so that a re-created connector never runs without its share.
        hosted.share(self._share(name))
        return hosted

    def _shared_host(self, name: str, settings: ConnectorSettings) -> SharedConnector | SharedTask:
        if settings.source is not None:
            self._warm_process.prepare()
        if settings.source is not None and not settings.is_paused:
            return SharedConnector(
                settings,
                settings.source,
                samples=self._samples,
                publish=partial(self._writer.store_assignment, name),
                start=self._warm_process.take,
                grace_s=self._grace_s,
                fencing=TaskFencing(name, self._group_context, fences_java=self._group.fences_java),
            )
        return SharedTask(
            settings,
            make=partial(create_connector, settings, samples=self._samples),
            publish=partial(self._writer.store_single_task, name),
            grace_s=self._grace_s,
        )

    def report(self, name: str) -> ConnectorReport:
        """Reports the whole connector; the parts of other nodes come from the status topic."""
        configs = self._configs.configs
        stopped = configs.target(name) is TargetState.STOPPED
        tasks = () if stopped else tuple(configs.tasks.get(name, ()))
        return self._statuses.whole(self.connectors.report(name), tasks, held=self._member.held)

    # -- commands

    async def relay(self, command: Command, request: Request) -> Response | None:
        node, topic = self._member, self._configs
        if (
            not await node.wait_for_leader()
        ):  # first: whether the group signs is known only after the rebalance
            raise ConnectError(409, NO_LEADER)
        if isinstance(command, PutTasks | Fence) and node.signs:
            if topic.configs.session_key is None:
                await self.read_on()
            check(request.body, request.signature, topic.configs.session_key, self._group.keys)
        if isinstance(command, RestartTask):
            url = self._owner(command)
            if url is not None:
                return await self._forward(url, request)
        elif not node.leads:
            return await self._forward(node.leader_url, request)
        match command:
            case PutTasks(name=name):
                self._must_exist(name)
                await self._writer.write(name, posted_tasks(request))
                return Response(status=204)
            case Fence(name=name):
                self._must_exist(name)
                try:
                    await self._peers.fence(name, self._topics.cluster, topic)
                except TasksChangedError as error:
                    raise ConnectError(409, str(error)) from error
                return Response(status=204)
        return None

    async def _forward(self, url: str, request: Request) -> Response:
        response = await self._peers.forward(url, request)
        # A client that calls the same node again must see what it has just changed.
        await self.read_on()
        return response

    async def restart(self, command: Restart, *, whole: bool, tasks: Sequence[int]) -> None:
        """Writes the request to the config topic. Every node with a part of the connector, also this one, reads it there."""
        await self._configs.put(
            RestartRequest(
                connector=command.name,
                include_tasks=command.include_tasks,
                only_failed=command.only_failed,
            ),
            now_ms=now_ms(),
        )
        await self.read_on()

    def _restart_here(self, record: RestartRequest) -> None:
        if self.connectors.hosted.get(record.connector) is None:
            return
        part = self.connectors.report(record.connector)
        if not record.only_failed or part.state == WorkerState.FAILED.value:
            self.connectors.restart(record.connector)
        else:
            failed = [task.task for task in part.tasks if task.state == WorkerState.FAILED.value]
            self.connectors.restart_tasks(record.connector, failed)

    def _owner(self, command: RestartTask) -> str | None:
        """Returns the URL of the task's node, or of the leader, which knows it; None for this node, or if no node has it."""
        node, unit = self._member, Unit(connector=command.name, task=command.task)
        if unit in node.held:
            return None
        if not node.leads:
            return node.leader_url
        url = node.owner(unit)
        return None if url == self._url else url

    def _must_exist(self, name: str) -> None:
        if name not in self._configs.configs.connectors:
            raise ConnectError(404, f"Connector {name} not found")

    async def wait_until_idle(self, name: str) -> None:
        if not await self._member.wait_until_idle(name):
            raise ConnectError(409, f"Tasks of connector {name} have not ended yet; try again.")


def _is_standby(wanted: config_decisions.Wanted) -> bool:
    """Whether a node without a part of the connector stays ready for one, so that a takeover does not wait for a start."""
    plugin = simple_name(wanted.properties.get("connector.class", ""))
    return plugin == SOURCE_CONNECTOR and wanted.target is TargetState.STARTED


class GroupLeader:
    """Writes what only the leader writes: the session key that nodes sign with, and connectors from files.

    *topic* was read to its end; *files* are connectors' properties. Guarantees: a new leader writes its files to the config
    topic, and only those that differ from it. A node whose file was in force and has been replaced since (by a newer file, or
    over REST) does not restore it. So a rolling restart with changed files never returns to the old ones, in whatever order
    nodes become leader.
    """

    def __init__(
        self, topic: ConfigTopic, rules: SessionKeySettings, files: Sequence[Mapping[str, str]]
    ) -> None:
        self._topic = topic
        self._rules = rules
        self._files = files
        self._in_force: set[str] = set()  # connectors that the topic once had as in our file
        self._has_led = False  # whether a new leader's first writes are done
        self.problem: FilesDifferError | None = None  # which of our files the topic differs from
        self.note_files()

    def note_files(self) -> None:
        """Notes which of our files the topic has, after it may have changed."""
        known = self._topic.configs.connectors
        self._in_force |= {file["name"] for file in self._files if known.get(file["name"]) == file}

    def renew(self, files: Sequence[Mapping[str, str]]) -> None:
        """Replaces our files; a leader writes those that differ from the topic."""
        self._files = files
        self._in_force.clear()
        self.note_files()
        self._has_led = False

    async def lead(self) -> None:
        """Writes a due session key and, when newly elected, our files. Raises ClusterError."""
        topic, records = self._topic, list[ConfigRecord]()
        if is_due(topic.configs.session_key, self._rules, now_ms=now_ms()):
            key = secrets.token_bytes(self._rules.size_bytes)
            records.append(SessionKey(key=key, algorithm=self._rules.algorithm, created_ms=now_ms()))
        if not self._has_led:
            files = [file for file in self._files if file["name"] not in self._in_force]
            records += config_decisions.seeds(files, topic.configs)
        if records:
            await topic.put(*records, now_ms=now_ms())
        self._has_led = True

    @property
    def is_new(self) -> bool:
        return not self._has_led

    def follow(self) -> None:
        """Notes that another node leads."""
        self._has_led = False

    def compare(self) -> None:
        """Logs once which of our files differ from the topic.

        States may differ for a while: the kubelet does not update the files of all nodes at the same time.
        """
        known = self._topic.configs.connectors
        names = tuple(
            sorted(
                file["name"]
                for file in self._files
                if with_state(known.get(file["name"], {}), RUNNING) != with_state(file, RUNNING)
            )
        )
        if names and (self.problem is None or self.problem.connectors != names):
            log.warning("%s: %s", FilesDifferError.reason, FilesDifferError(names))
        self.problem = FilesDifferError(names) if names else None
