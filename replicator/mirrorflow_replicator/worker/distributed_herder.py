"""Runs one node's part of the connectors that a group of distributed workers shares.

    config topic <── leader: connectors, task configs, session key            every node: read each second ──> its part
         ^── a follower's tasks, signed, over HTTP; a client's writing call, forwarded ──┘

The leader assigns the parts. The guarantees of `worker.single_node_herder` hold whichever node receives the
call. The config topic keeps config provider references as the user wrote them, because each node resolves
them itself. A node's part follows the newest properties within about a second. A call that arrives during a
rebalance is answered with 409 and can be retried. `worker.group_member` is the node's membership of the
group.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.connect.session_keys import ConnectError, SessionKey, check, is_due
from mirrorflow_core.connect.worker_records import (
    ConfigRecord,
    RestartRequest,
    TargetState,
    WorkerState,
)
from mirrorflow_core.errors import FilesDifferError, NotAuthorizedError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import (
    ConnectorSettings,
    SessionKeySettings,
    WorkerSettings,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.group_membership import Membership
from mirrorflow_kafka.stores.worker_topics import ConfigTopic, StatusTopic
from mirrorflow_replicator.config.connector import SOURCE_CONNECTOR
from mirrorflow_replicator.connectors.connector_host import ConnectorHost, host
from mirrorflow_replicator.connectors.task_supervisor import WarmProcess
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.http.commands import (
    Command,
    Fence,
    ListOffsets,
    PutTasks,
    Restart,
    RestartTask,
)
from mirrorflow_replicator.http.commands import task_configs as sent_tasks
from mirrorflow_replicator.http.samples import Samples
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker.group_member import LOOK_S, GroupMember
from mirrorflow_replicator.worker.group_tasks import GroupNode, TaskConfigWriter, TaskFencing
from mirrorflow_replicator.worker.herder import RUNNING, States, with_state
from mirrorflow_replicator.worker.internal_rest import PeerClient, TasksChangedError
from mirrorflow_replicator.worker.shared_connectors import (
    SharedConnector,
    SharedSource,
    SharedTask,
    TaskShare,
    share_of,
)
from mirrorflow_replicator.worker.single_node_herder import SingleNodeHerder
from mirrorflow_replicator.worker.status_writer import SharedStatuses

WARM_S = 10.0  # for a new node to connect and to start a process; then it joins the group in any case
BUSY = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)

log = logging.getLogger("mirrorflow.group")


class DistributedHerder(SingleNodeHerder):
    """The herder of one node of a group. *url* returns the URL at which the other nodes reach this one."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        samples: Samples,
        worker_id: Callable[[], str],
        url: Callable[[], str],
        label: str = "",
    ) -> None:
        super().__init__(settings, samples=samples, worker_id=worker_id, label=label)
        group = self._distributed.group
        assert group is not None, "a lone worker has a herder of another class"
        self._group = group
        self._url = url
        self._joined: _JoinedNode | None = None  # set when the topics were read
        self._running_node: asyncio.Task[None] | None = None
        self._others = PeerClient(settings, group)
        self._spare = WarmProcess()

    async def stop(self, grace_s: float) -> None:
        """Stops this node's part gracefully, writes its last statuses and leaves the group.

        Other nodes can then take over at once.
        """
        self._stopping = True
        await asyncio.gather(self._running.stop(), self._spare.close())
        if self._joined is not None:
            await self._joined.statuses.write_final()
        if self._running_node is not None:
            self._running_node.cancel()
            await asyncio.wait({self._running_node})
            await self._here.member.leave()

    def set_states(self, states: States) -> None:
        """Changes the states in our files, which the leader writes to the config topic."""
        files = tuple(with_state(file, states.get(file["name"], RUNNING)) for file in self._distributed.seeds)
        self._distributed = replace(self._distributed, seeds=files)
        if self._joined is not None:
            self._joined.leader.renew(files)

    @property
    def _here(self) -> "_JoinedNode":
        assert self._joined is not None, "the topics were read before anything runs"
        return self._joined

    @property
    def warnings(self) -> tuple[str, ...]:
        """Unreadable records of the topics, an error of the membership, and files that are not in force."""
        joined = self._joined
        if joined is None:
            return super().warnings
        errors = [str(error) for error in (joined.member.problem, joined.leader.problem) if error is not None]
        return (*super().warnings, *joined.statuses.warnings, *errors)

    @property
    def is_rebalancing(self) -> bool:
        return self._joined is not None and self._joined.member.meeting

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node's part has started; a node without a part is ready."""
        node = None if self._joined is None else self._joined.member
        if node is None or not node.leader_url or node.problem is not None:
            return False
        mine = [report for report in reports if report.is_here or any(one.is_here for one in report.tasks)]
        tasks = [task for report in mine for task in report.tasks if task.is_here]
        begun = all(task.state in {"RUNNING", "PAUSED", "STOPPED"} for task in tasks)
        return begun and all(report.heard_of_all for report in mine)

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out a REST call, here or on the node it belongs to. Raises ConnectError, MirrorFlowError."""
        if isinstance(command, ListOffsets):
            return await super().carry_out(command, request)
        if self._joined is None or self._stopping:
            return await super().carry_out(command, request)  # which answers with the reason
        node, topic = self._joined.member, self._joined.configs
        if not await node.met():  # first: whether the group signs is known only after the rebalance
            raise ConnectError(409, BUSY)
        if isinstance(command, PutTasks | Fence) and node.signs:
            if topic.configs.session_key is None:
                await self._read_new()
            check(request.body, request.signature, topic.configs.session_key, self._group.keys)
        if isinstance(command, RestartTask):
            url = self._owner(command)
            if url:
                return await self._forward(url, request)
        elif not node.leads:
            return await self._forward(node.leader_url, request)
        match command:
            case PutTasks(name=name):
                self._must_exist(name)
                await self._writer.write(name, sent_tasks(request))
                return Response(status=204)
            case Fence(name=name):
                self._must_exist(name)
                try:
                    await self._others.fence(name, self._joined.cluster, topic)
                except TasksChangedError as error:
                    raise ConnectError(409, str(error)) from error
                return Response(status=204)
            case Restart(name=name) if name in topic.configs.connectors:
                await topic.put(
                    RestartRequest(
                        connector=name,
                        include_tasks=command.include_tasks,
                        only_failed=command.only_failed,
                    ),
                    now_ms=now_ms(),
                )
        return await super().carry_out(command, request)

    async def _forward(self, url: str, request: Request) -> Response:
        answer = await self._others.forward(url, request)
        # A client that calls the same node again must see what it has just changed.
        await self._read_on()
        return answer

    # -- the topics

    async def _begin(self, cluster: Cluster, configs: ConfigTopic, statuses: StatusTopic) -> None:
        member = GroupMember(
            Membership(cluster, self._group),
            self._group,
            url=self._url(),
            configs=configs,
            read=self._read_on,
            follow=self._follow,
        )
        self._joined = _JoinedNode(
            cluster=cluster,
            configs=configs,
            member=member,
            others=self._others,
            read=self._read_on,
            statuses=SharedStatuses(statuses, worker_id=self._worker_id),
            leader=GroupLeader(configs, self._group.keys, self._distributed.seeds),
        )

    def _jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (*super()._jobs(), self._be_a_node())

    async def _be_a_node(self) -> None:
        await self._warm()
        self._running_node = asyncio.create_task(self._here.member.run(), name="node")
        await asyncio.wait({self._running_node})
        if not self._running_node.cancelled():
            self._running_node.result()
        await asyncio.Event().wait()  # it was cancelled, in order to leave

    async def _warm(self) -> None:
        """Gets ready before the group assigns to this node what another node copies at this moment."""
        self._arrange()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WARM_S):
                await self._spare.ready()
        for _ in range(round(WARM_S / LOOK_S)):
            hosted = self._running.hosted.values()
            if all(
                one is not None and (not isinstance(one, SharedConnector) or one.is_warm) for one in hosted
            ):
                return
            await asyncio.sleep(LOOK_S)

    async def _read_new(self) -> Sequence[ConfigRecord]:
        records = await super()._read_new()
        for record in records:
            if isinstance(record, RestartRequest):
                self._restart_here(record)
        if records and self._joined is not None:
            self._joined.leader.look()
        return records

    async def _read_on(self) -> None:
        if await self._read_new():
            self._arrange()

    async def _publish(self) -> None:
        here = self._here
        node, configs = here.member, here.configs.configs
        settled = node.leads and not node.meeting
        if settled:
            await here.leader.lead()
        if not node.meeting:
            here.leader.compare()
        await here.statuses.publish(
            [self._part(name) for name in configs.connectors],
            held=node.held,
            wanted=command_decisions.units(configs) if settled else None,
            generation=node.generation,
        )

    # -- what runs here

    async def _follow(self) -> None:
        """Starts what is held, and returns when nothing else runs any more."""
        leader = self._here.leader
        if self._here.member.leads:
            if leader.is_new:
                await self._fence_leader()
            await leader.lead()
        else:
            leader.follow()
        self._arrange()
        await self._running.settled()
        for hosted in [*self._running.hosted.values()]:
            if isinstance(hosted, SharedSource):
                await hosted.settled()

    async def _fence_leader(self) -> None:
        """Fences an earlier leader that is a Java worker: it may be a zombie.

        Java's leader writes to the config topic in transactions where its tasks write in transactions.
        """
        if self._here.configs.configs.fenced:
            try:
                await self._others.fence_leader(self._here.cluster)
            except NotAuthorizedError as error:
                log.warning("A Java worker that led before is not fenced: %s", error)

    def _arrange(self) -> None:
        super()._arrange()
        for name, hosted in self._running.hosted.items():
            if isinstance(hosted, SharedSource) and not self._stopping:
                hosted.share(self._share(name))
        if self._joined is not None:
            self._joined.member.look()

    def _wanted(self) -> dict[str, command_decisions.Wanted]:
        held = frozenset() if self._joined is None else self._joined.member.held
        here = {unit.connector for unit in held}
        return {
            name: wanted for name, wanted in super()._wanted().items() if name in here or _stands_by(wanted)
        }

    def _share(self, name: str) -> TaskShare:
        return share_of(name, self._tasks(name), self._here.member.held)

    def _host(self, name: str, settings: ConnectorSettings) -> ConnectorHost | None:
        hosted = self._shared_host(name, settings)
        if isinstance(hosted, SharedSource):
            # At once: the re-created connector must not run even briefly with its earlier share.
            hosted.share(self._share(name))
        return hosted

    def _shared_host(self, name: str, settings: ConnectorSettings) -> ConnectorHost | None:
        grace_s = self._settings.shutdown_s
        if settings.source is not None:
            self._spare.prepare()
        if settings.source is not None and not settings.is_paused:
            return SharedConnector(
                settings,
                settings.source,
                samples=self._samples,
                publish=partial(self._writer.assignment, name),
                start=self._spare.take,
                grace_s=grace_s,
                claiming=TaskFencing(name, self._here, fences_java=self._group.fences_java),
            )
        whole = partial(host, settings, samples=self._samples)
        if whole() is None:
            return None
        return SharedTask(settings, make=whole, publish=partial(self._writer.one, name), grace_s=grace_s)

    @property
    def _writer(self) -> TaskConfigWriter:
        return TaskConfigWriter(self._here, arrange=self._arrange)

    # -- how it fares

    def _part(self, name: str) -> ConnectorReport:
        """Reports the part of the connector that runs here."""
        return super()._report(name)

    def _report(self, name: str) -> ConnectorReport:
        """Reports the whole connector; the parts of other nodes come from the status topic."""
        here, configs = self._here, self._here.configs.configs
        stopped = configs.target(name) is TargetState.STOPPED
        tasks = () if stopped else tuple(configs.tasks.get(name, ()))
        return here.statuses.whole(self._part(name), tasks, held=here.member.held)

    # -- commands

    def _restart_now(self, name: str, *, whole: bool, tasks: Sequence[int]) -> None:
        """Does nothing: every node with a part of it, also this one, reads the request in the topic."""

    def _restart_here(self, record: RestartRequest) -> None:
        if self._running.hosted.get(record.connector) is None:
            return
        part = self._part(record.connector)
        if not record.only_failed or part.state == WorkerState.FAILED.value:
            self._restart_connector(record.connector)
        else:
            failed = [task.task for task in part.tasks if task.state == WorkerState.FAILED.value]
            self._restart_tasks(record.connector, failed)

    def _owner(self, command: RestartTask) -> str:
        """Returns the URL of the task's node, or of the leader, which knows it; "" for this node."""
        node, unit = self._here.member, Unit(connector=command.name, task=command.task)
        if unit in node.held:
            return ""
        if not node.leads:
            return node.leader_url
        url = node.owner(unit)
        return "" if url == self._url() else url

    def _must_exist(self, name: str) -> None:
        if name not in self._here.configs.configs.connectors:
            raise ConnectError(404, f"Connector {name} not found")

    async def _wait_until_idle(self, name: str) -> None:
        if not await self._here.member.quiet(name):
            raise ConnectError(409, f"Tasks of connector {name} have not ended yet; try again.")


def _stands_by(wanted: command_decisions.Wanted) -> bool:
    """Whether a node without a part of the connector prepares for one: copying must not wait for a start."""
    plugin = command_decisions.simple_name(wanted.properties.get("connector.class", ""))
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
        self._led = False  # whether the steps of a new leader are done
        self.problem: FilesDifferError | None = None  # which of our files the topic differs from
        self.look()

    def look(self) -> None:
        """Notes which of our files are in force, after the topic may have changed."""
        known = self._topic.configs.connectors
        self._in_force |= {file["name"] for file in self._files if known.get(file["name"]) == file}

    def renew(self, files: Sequence[Mapping[str, str]]) -> None:
        """Replaces our files; the leader writes those that differ from the topic."""
        self._files = files
        self._in_force.clear()
        self.look()
        self._led = False

    async def lead(self) -> None:
        """Writes a due session key and, when newly elected, our files. Raises ClusterError."""
        topic, records = self._topic, list[ConfigRecord]()
        if is_due(topic.configs.session_key, self._rules, now_ms=now_ms()):
            key = secrets.token_bytes(self._rules.size_bytes)
            records.append(SessionKey(key=key, algorithm=self._rules.algorithm, created_ms=now_ms()))
        if not self._led:
            files = [file for file in self._files if file["name"] not in self._in_force]
            records += command_decisions.seeds(files, topic.configs)
        if records:
            await topic.put(*records, now_ms=now_ms())
        self._led = True

    @property
    def is_new(self) -> bool:
        return not self._led

    def follow(self) -> None:
        """Notes that another node leads."""
        self._led = False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedNode(GroupNode):
    """A node with its statuses, and with the duties that it has when it leads."""

    statuses: SharedStatuses
    leader: GroupLeader
