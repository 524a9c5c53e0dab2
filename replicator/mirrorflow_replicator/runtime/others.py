"""What a node of a group asks of the other nodes: to do what a client asked of it, or what its own part needs.

Promises: a client's request is passed on once, by who does not lead to who does, and once more by who leads to who has the
task, never further (Java's `forward`); a signature goes with it; who is asked over TLS is who the group's trust store says.
"""

import json
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import parse_qsl, quote, urlencode

from mirrorflow_replicator.connect.internal_rest import flow_path
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.session_keys import SessionKey, sign
from mirrorflow_replicator.connect.view import NO_SIGNATURE, ConnectError, Request, Response
from mirrorflow_replicator.connect.worker_records import TaskCount
from mirrorflow_replicator.errors import BrokerError, MirrorFlowError, UnreachableError
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.tls import build_context
from mirrorflow_replicator.kafka.transactions import init_producer_id
from mirrorflow_replicator.kafka.worker_topics import ConfigTopic
from mirrorflow_replicator.runtime.calling import call
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.settings import GroupSettings, WorkerSettings

FORWARD_S = 60.0  # less than the 90 s after which the client is told that its time is over
ASK_S = 30.0
FENCE_TIMEOUT_MS = 60_000  # of a transaction that is never begun
CONFLICT = (
    "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"  # RestClient's words
)


class TasksChangedError(MirrorFlowError):
    """A round of fencing was overtaken."""

    reason = "TasksChanged"
    retriable = True

    def __init__(self, connector: str) -> None:
        super().__init__(f"The tasks of {connector} have changed meanwhile; try again.")


class Others:
    """See the module."""

    def __init__(self, settings: WorkerSettings, group: GroupSettings) -> None:
        self._resolved = partial(Resolver(settings.providers).resolve_client, settings.http.tls)
        self._group = group
        self._prefix = "" if group.flow is None else flow_path(*group.flow)

    async def forward(self, url: str, request: Request) -> Response:
        """What the node at *url* answers to *request*. Raises ConnectError where it was passed on often enough."""
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        hop = query.get("forward")
        if hop == "false" or not url:
            raise ConnectError(409, CONFLICT)
        query["forward"] = "true" if hop is None else "false"
        try:
            return await call(
                url,
                request.method,
                f"{request.path}?{urlencode(query)}",
                body=request.body,
                content_type=request.content_type,
                signature=request.signature,
                tls=self._tls(url),
                server_name=self._group.server_name,
                timeout_s=FORWARD_S,
            )
        except UnreachableError as error:
            raise ConnectError(500, f"Error trying to forward REST request: {error}") from error

    async def post_tasks(
        self, url: str, name: str, tasks: Sequence[Mapping[str, str]], key: SessionKey | None
    ) -> None:
        """Have the leader at *url* write *tasks* of connector *name* down; signed with *key*, where the group signs.

        Raises UnreachableError, BrokerError where it does not.
        """
        body = json.dumps(tasks, ensure_ascii=False, separators=(",", ":")).encode()
        await self._ask(url, "POST", name, "tasks", body, key)

    async def ask_to_fence(self, url: str, name: str, key: SessionKey | None) -> None:
        """Have the leader at *url* fence earlier tasks of connector *name*. Raises UnreachableError, BrokerError."""
        await self._ask(url, "PUT", name, "fence", b"", key)

    async def _ask(
        self, url: str, method: str, name: str, what: str, body: bytes, key: SessionKey | None
    ) -> None:
        signature = NO_SIGNATURE if key is None else sign(body, key, self._group.keys.signature)
        answer = await call(
            url,
            method,
            f"{self._prefix}/connectors/{quote(name, safe='')}/{what}",
            body=body,
            signature=signature,
            tls=self._tls(url),
            server_name=self._group.server_name,
            timeout_s=ASK_S,
        )
        if answer.status // 100 != 2:
            raise BrokerError(
                cluster=self._group.client.alias,
                request=f"{method} {what} of {name} to {url}",
                code=answer.status,
                name=f"HTTP {answer.status}",
                retriable=True,
            )

    async def fence(self, name: str, cluster: Cluster, topic: ConfigTopic) -> None:
        """Take the transactional ids of earlier tasks of *name* away from them, and write down how many there are now.

        Java's tasks of the group use those ids, and ours beside them. Raises ClusterError, TasksChangedError.
        """
        await topic.read_new()
        configs = topic.configs
        count, before = len(configs.tasks.get(name, ())), configs.fenced.get(name)
        if name not in configs.unfenced and before is not None:
            return  # nobody has been told of other tasks since
        if before is not None and not before == count == 1:
            for number in range(before):
                await init_producer_id(
                    cluster, self.transactional_id(name, number), timeout_ms=FENCE_TIMEOUT_MS
                )
            await topic.read_new()
            if len(configs.tasks.get(name, ())) != count:
                raise TasksChangedError(name)
        await topic.put(TaskCount(connector=name, tasks=count), now_ms=now_ms())

    async def fence_leader(self, cluster: Cluster) -> None:
        """Take the config topic away from a Java worker that led before and may not know that it does not any more.

        What it left open there would hide what others write behind it. Raises ClusterError.
        """
        name = f"connect-cluster-{self._group.group_id}"  # Java's DistributedConfig.transactionalProducerId
        await init_producer_id(cluster, name, timeout_ms=FENCE_TIMEOUT_MS)

    def transactional_id(self, name: str, task: int) -> str:
        """Of *task* of connector *name*, whoever runs it (Java's Worker.taskTransactionalId)."""
        return f"{self._group.group_id}-{name}-{task}"

    def _tls(self, url: str) -> ssl.SSLContext | None:
        """Made for each request: certificates are renewed, and requests are rare."""
        return build_context(self._resolved())[0] if url.lower().startswith("https:") else None
