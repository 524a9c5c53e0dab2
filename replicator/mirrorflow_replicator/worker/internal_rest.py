"""HTTP calls between the nodes of a group (KIP-710): the client, and the routes of a server for these only.

    POST /{source}/{target}/connectors/{connector}/tasks      the connector's task configs, from its node to the leader
    PUT  /{source}/{target}/connectors/{connector}/fence      fence earlier transactional tasks

As Java's InternalMirrorResource. In MM2's dedicated mode one server is there for all flows, so paths begin
with the flow; a distributed worker's do not. The herder verifies the signature, and so whether the caller
belongs to the group; `route` does not.

Guarantees: followers forward a client's request once to the leader, which forwards it once to the task's
owner, never further (Java's `forward`). The signature is forwarded too. Over TLS, the group's trust store
decides which peer is trusted. Each call is one HTTP request, bounded in time and size. It is never retried
here: the caller knows which calls are safe to repeat.
"""

import asyncio
import json
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import h11

from mirrorflow_core.connect.session_keys import NO_SIGNATURE, ConnectError, SessionKey, sign
from mirrorflow_core.connect.worker_records import TaskCount
from mirrorflow_core.errors import BrokerError, MirrorFlowError, UnreachableError
from mirrorflow_core.settings import GroupSettings, WorkerSettings
from mirrorflow_kafka.admin.transactions import init_producer_id
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.http_exchange import HttpResponse, exchange
from mirrorflow_kafka.security.tls import build_context, certificate_name
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.http.commands import NOT_ALLOWED, NOT_FOUND, Internal, internal_command
from mirrorflow_replicator.http.worker_view import (
    ALGORITHM_HEADER,
    JSON,
    SIGNATURE_HEADER,
    WORD_MAX,
    Request,
    Response,
    error_response,
)
from mirrorflow_replicator.process import now_ms

FORWARD_TIMEOUT_S = 60.0  # less than the 90 s after which the client's request times out
REQUEST_TIMEOUT_S = 30.0
FENCE_TIMEOUT_MS = 1_000  # of a transaction that never begins; brokers may refuse longer ones
CONFLICT = (
    "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"  # RestClient's text
)
CONNECT_TIMEOUT_S = 5.0  # for a node of the same cluster; the caller retries one that is gone
RESPONSE_BYTES_MAX = 16 << 20  # all stored offsets of a flow; nothing else comes near
Flow = tuple[str, str]  # aliases of source and target


class TasksChangedError(MirrorFlowError):
    """Task configs changed during a round of fencing."""

    reason = "TasksChanged"
    retriable = True

    def __init__(self, connector: str) -> None:
        super().__init__(f"The task configs of {connector} have changed during fencing; try again.")


class PeerClient:
    """The HTTP client for the other nodes of one group."""

    def __init__(self, settings: WorkerSettings, group: GroupSettings) -> None:
        self._resolved = partial(Resolver(settings.providers).resolve_client, settings.http.tls)
        self._group = group
        self._prefix = "" if group.flow is None else flow_path(*group.flow)

    @property
    def group_id(self) -> str:
        return self._group.group_id

    async def forward(self, url: str, request: Request) -> Response:
        """Returns the response of the node at *url*. Raises ConnectError if *request* was forwarded often enough."""
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        hop = query.get("forward")
        if hop == "false" or not url:
            raise ConnectError(409, CONFLICT)
        query["forward"] = "true" if hop is None else "false"
        try:
            return await self._call(
                url, replace(request, query=urlencode(query)), timeout_s=FORWARD_TIMEOUT_S
            )
        except UnreachableError as error:
            raise ConnectError(500, f"Error trying to forward REST request: {error}") from error

    async def post_tasks(
        self, url: str, name: str, tasks: Sequence[Mapping[str, str]], key: SessionKey | None
    ) -> None:
        """Sends *tasks* of connector *name* to the leader at *url*, which stores them; signed with *key*, if the group signs.

        Raises UnreachableError, or BrokerError if the leader refuses.
        """
        body = json.dumps(tasks, ensure_ascii=False, separators=(",", ":")).encode()
        await self._request(url, name, "tasks", key, body)

    async def request_fencing(self, url: str, name: str, key: SessionKey | None) -> None:
        """Requests that the leader at *url* fence earlier tasks of connector *name*. Raises UnreachableError, BrokerError."""
        await self._request(url, name, "fence", key)

    async def _request(
        self, url: str, name: str, what: str, key: SessionKey | None, body: bytes = b""
    ) -> None:
        method = "POST" if body else "PUT"
        path = f"{self._prefix}/connectors/{quote(name, safe='')}/{what}"
        signature = NO_SIGNATURE if key is None else sign(body, key, self._group.keys.signature)
        request = Request(method=method, path=path, body=body, content_type=JSON, signature=signature)
        response = await self._call(url, request, timeout_s=REQUEST_TIMEOUT_S)
        if response.status // 100 != 2:
            raise BrokerError(
                cluster=self._group.client.alias,
                request=f"{method} {what} of {name} to {url}",
                code=response.status,
                name=f"HTTP {response.status}",
                retriable=True,
            )

    async def _call(self, url: str, request: Request, *, timeout_s: float) -> Response:
        # TLS is built for each request: certificates are renewed, and requests are rare.
        tls = build_context(self._resolved())[0] if url.lower().startswith("https:") else None
        return await call(url, request, tls=tls, server_name=self._group.server_name, timeout_s=timeout_s)

    async def fence(self, name: str, cluster: Cluster, topic: ConfigTopic) -> None:
        """Fences earlier tasks of *name* by their transactional ids, and stores how many tasks there are now.

        Java's tasks of the group use those ids, and so do ours beside them. Raises ClusterError, TasksChangedError.
        """
        await topic.read_new()
        configs = topic.configs
        count, before = len(configs.tasks.get(name, ())), configs.fenced.get(name)
        if name not in configs.unfenced and before is not None:
            return  # no other tasks have been stored since
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
        """Fences a Java worker that led before and may not know that it no longer does.

        A transaction that it left open in the config topic would hide the records written after it. Raises
        ClusterError.
        """
        name = f"connect-cluster-{self._group.group_id}"  # Java's DistributedConfig.transactionalProducerId
        await init_producer_id(cluster, name, timeout_ms=FENCE_TIMEOUT_MS)

    def transactional_id(self, name: str, task: int) -> str:
        """Returns *task*'s transactional id, the same on each node (Java's Worker.taskTransactionalId)."""
        return f"{self._group.group_id}-{name}-{task}"


async def call(
    url: str,
    request: Request,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout_s: float,
) -> Response:
    """Returns the response of the node at *url*; its certificate must be for *server_name*, None for the host of *url*.

    Raises UnreachableError.
    """
    parts = urlsplit(url)
    secure = tls if parts.scheme == "https" else None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    headers = [("Host", parts.netloc), ("Accept", JSON), ("Connection", "close")]
    if request.body:
        headers.append(("Content-Type", request.content_type or JSON))
    if request.method != "GET":
        headers.append(("Content-Length", str(len(request.body))))
    if request.signature.mac is not None and request.signature.algorithm is not None:
        headers.append((SIGNATURE_HEADER, request.signature.mac))
        headers.append((ALGORITHM_HEADER, request.signature.algorithm))
    target = f"{request.path}?{request.query}" if request.query else request.path
    head = h11.Request(method=request.method, target=target, headers=headers)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            name = certificate_name(server_name or parts.hostname) if secure else None
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=secure, server_hostname=name
            )
    except (TimeoutError, OSError, UnicodeError) as error:
        raise _unreachable(url, str(error) or "no response") from error
    try:
        async with asyncio.timeout(timeout_s):
            return _response(await exchange(reader, writer, head, request.body, bytes_max=RESPONSE_BYTES_MAX))
    except (TimeoutError, OSError, h11.ProtocolError) as error:
        raise _unreachable(url, str(error) or f"no response within {timeout_s:g} s") from error
    finally:
        writer.transport.abort()


def _response(response: HttpResponse) -> Response:
    content_type, forwarded = JSON, []
    for name, value in response.headers:
        if name == b"content-type":
            content_type = value.decode("latin-1")
        if name == b"location":
            # Without the other node's address: the client called this node.
            there = urlsplit(value.decode("latin-1"))
            forwarded.append(("Location", there._replace(scheme="", netloc="").geturl()))
    return Response(
        status=response.status, content_type=content_type, headers=tuple(forwarded), body=response.body
    )


def _unreachable(url: str, problem: str) -> UnreachableError:
    return UnreachableError(cluster="the group's own workers", addresses=url, problem=problem)


def flow_path(source: str, target: str) -> str:
    """Returns the beginning of a flow's paths, percent-encoded as UTF-8 for aliases with any characters."""
    return f"/{quote(source, safe='')}/{quote(target, safe='')}"


def flow_of(request: Request) -> Flow | None:
    """Returns the flow in the path of *request*; None if the path is too short for one."""
    parts = _parts(request)
    return None if parts is None or len(parts) < 3 else (parts[0], parts[1])


def route(request: Request, flows: Collection[Flow] | None) -> Response | Internal:
    """Returns the call in *request* for one of *flows*, or an error response.

    *flows* is None for a worker without flows in its paths.
    """
    parts = _parts(request)
    if parts is None:
        return error_response(400, "HTTP 400 Bad Request")
    path = parts if flows is None else parts[2:]
    called = internal_command(request, path)
    if called is None:
        known = len(path) == 3 and path[0] == "connectors" and path[2] in {"tasks", "fence"}
        return error_response(405, NOT_ALLOWED) if known else error_response(404, NOT_FOUND)
    if flows is not None and (parts[0], parts[1]) not in flows:
        source, target = (part[:WORD_MAX] for part in parts[:2])
        return error_response(404, f"No replication flow found for source '{source}' and target '{target}'")
    return called


def _parts(request: Request) -> list[str] | None:
    try:
        return [unquote(part, errors="strict") for part in request.path.split("/")[1:] if part]
    except ValueError:  # not UTF-8 after decoding
        return None
