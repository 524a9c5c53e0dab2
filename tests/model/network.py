"""A simulated network: connections with the interface of `client.connection.Connection`, and messages on their way.

The seam is `open_connection` as `client.cluster` calls it. A message arrives when its time has come, in the order of its
connection and direction. A broker serves one request of a connection after the other. A connection may end at either end
or in between; what was sent on it before may be executed all the same, also much later, and its response is then lost.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mirrorflow_core.errors import ClusterError, ConnectionLostError, UnreachableError
from mirrorflow_kafka.client.connection import ANSWER_TIMEOUT_S, Answer, Part
from mirrorflow_kafka.client.versions import Versions, choose_version
from tests.model.admin_answers import VERSIONS
from tests.model.broker import SimulatedCluster
from tests.model.loop import NEVER_S, VirtualLoop

if TYPE_CHECKING:
    from tests.model.world import World

LATENCY_S = 0.0005  # one way
_NAMED_BYTES = 80  # in which a produce request or its answer has named its first topic


class Process(Protocol):
    """Whose connections these are."""

    name: str
    loop: VirtualLoop
    is_dead: bool


@dataclass(slots=True, eq=False)
class Message:
    """A request, or the answer to one."""

    link: "Link"
    is_request: bool
    api: str
    version: int
    payload: Any
    waiter: Answer
    due: float

    @property
    def world(self) -> "World":
        return self.link.world

    @property
    def is_internal(self) -> bool:
        """Whether it is about a topic of positions, decisions or maps, whose names begin all the same."""
        return isinstance(self.payload, bytes) and b"mm2-" in self.payload[:_NAMED_BYTES]


class Link:
    """What lies between the two ends of a connection."""

    def __init__(self, world: "World", process: Process, cluster: SimulatedCluster, node_id: int) -> None:
        self.process = process
        self.cluster = cluster
        self.node_id = node_id
        self.connection: SimulatedConnection | None = None
        self.is_cut = False  # nothing comes back any more
        self._held_until = 0.0
        self.world = world
        self._requests: deque[Message] = deque()
        self._answers: deque[Message] = deque()
        self._received: deque[Message] = deque()
        self._is_serving = False

    # -- sending

    def send(self, api: str, version: int, payload: Any, waiter: Answer) -> None:
        """A request leaves."""
        message = Message(self, True, api, version, payload, waiter, self._due(self._requests))
        self._requests.append(message)
        self.world.at(message.due, self._arrive_request)

    def _due(self, queue: deque[Message]) -> float:
        due = max(self.world.clock.now + self.world.latency_s(self), self._held_until)
        return max(due, queue[-1].due) if queue else due

    # -- arriving

    def _arrive_request(self) -> None:
        if not self._requests or self._requests[0].due > self.world.clock.now:
            return  # it was held, or lost
        message = self._requests[0]
        if not self.world.may_arrive(message) or not self._requests or self._requests[0] is not message:
            return
        self._requests.popleft()
        self._received.append(message)
        self._serve()

    def _serve(self) -> None:
        if self._is_serving or not self._received or self.node_id not in self.cluster.up:
            return
        self._is_serving = True
        message = self._received.popleft()
        self.world.note(message)
        self.cluster.handle(
            self.node_id, message.api, message.version, message.payload, partial(self._answer, message)
        )

    def _answer(self, request: Message, payload: Any) -> None:
        self._is_serving = False
        if not self.is_cut:
            message = Message(
                self, False, request.api, request.version, payload, request.waiter, self._due(self._answers)
            )
            self._answers.append(message)
            self.world.at(message.due, self._arrive_answer)
        self._serve()

    def _arrive_answer(self) -> None:
        if not self._answers or self._answers[0].due > self.world.clock.now:
            return
        message = self._answers[0]
        if not self.world.may_arrive(message) or not self._answers or self._answers[0] is not message:
            return
        self._answers.popleft()
        self.world.note(message)
        if self.connection is not None and not self.process.is_dead:
            self.process.loop.call_soon(self.connection.answered, message.waiter, message.payload)

    # -- disturbances

    def hold(self, delay_s: float) -> None:
        """Nothing passes for so long, in either direction."""
        until = self._held_until = self.world.clock.now + delay_s
        for queue, arrive in ((self._requests, self._arrive_request), (self._answers, self._arrive_answer)):
            for message in queue:
                message.due = max(message.due, until)
                self.world.at(message.due, arrive)

    def cut(self, *, arrives_after_s: float = 0.0) -> None:
        """The connection ends. What was sent and has not arrived is executed so much later; never if that is infinite."""
        if self.is_cut:
            return
        self.is_cut = True
        self._answers.clear()
        if arrives_after_s == NEVER_S:
            self._requests.clear()
            self._received.clear()
        elif arrives_after_s:
            self.hold(arrives_after_s)
        if self.connection is not None and not self.process.is_dead:
            self.process.loop.call_soon(self.connection.was_lost, "the connection was lost")

    def closed(self) -> None:
        """The client has closed its end: what it has sent is on its way all the same."""
        self.is_cut = True
        self._answers.clear()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the broker."""
        return not self._requests and not self._received


class SimulatedConnection:
    """The client's end: what the product uses of `client.connection.Connection`."""

    def __init__(self, link: Link, *, cluster: str, address: str, node_id: int) -> None:
        self.cluster = cluster
        self.address = address
        self.node_id = node_id
        self.versions: Versions = VERSIONS
        self.throttle_ms = 0
        self.client_id = "model"
        self.opened_by: object = None
        self.is_retired = False
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[ClusterError] = self._loop.create_future()
        self._pending: deque[tuple[Answer, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return not self.lost.done()

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def send(
        self, api_key: int, api_version: int, parts: Sequence[Part], *, flexible: bool
    ) -> asyncio.Future[memoryview]:
        """See `Connection`."""
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self.send_for(answer, api_key, api_version, parts, flexible=flexible)
        return answer

    def send_for(
        self, answer: Answer, api_key: int, api_version: int, parts: Sequence[Part], *, flexible: bool
    ) -> None:
        """See `Connection`. The bytes are copied: the product writes into them again."""
        self._submit(SimulatedCluster.api_of(api_key), api_version, b"".join(parts), answer)

    async def call(self, request: Any, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """See `Connection`; the answer is a namespace with the fields of kafka-python's."""
        version = choose_version(request, self.versions, cluster=self.cluster)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._submit(request.name.removesuffix("Request"), version, request, answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            problem = f"{request.name} was not answered within {timeout_s:g} s"
            raise UnreachableError(cluster=self.cluster, addresses=self.address, problem=problem) from None

    def throttled(self, throttle_ms: int) -> None:
        """See `Connection`: there are no quotas here."""

    async def drained(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """See `Connection`."""
        if self.is_open:
            self._link.closed()
            self.was_lost("we closed it")

    def retire(self) -> None:
        """See `Connection`: secrets do not rotate here."""
        self.is_retired = True

    def _submit(self, api: str, version: int, payload: Any, answer: Answer) -> None:
        if self.lost.done():
            self._fail(answer, self.lost.result())
            return
        self._pending.append((answer, self._loop.time() + ANSWER_TIMEOUT_S))
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_TIMEOUT_S, self._check_oldest)
        self._link.send(api, version, payload, answer)

    # -- what the network says

    def answered(self, answer: Answer, payload: Any) -> None:
        """The oldest request is answered."""
        if self.lost.done():
            return
        oldest, _ = self._pending.popleft()
        assert oldest is answer, "answers come in order"
        if not answer.done():
            answer.set_result(memoryview(bytearray(payload)) if isinstance(payload, bytes) else payload)

    def was_lost(self, problem: str) -> None:
        """The connection is no more."""
        if self.lost.done():
            return
        error = ConnectionLostError(cluster=self.cluster, address=self.address, problem=problem)
        self.lost.set_result(error)
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, deque()
        for answer, _ in pending:
            if not answer.done():
                self._fail(answer, error)

    def _check_oldest(self) -> None:
        self._timer = None
        if not self._pending:
            return
        expires_at = self._pending[0][1]
        if expires_at <= self._loop.time():
            self._link.closed()
            self.was_lost(f"it has not answered for {ANSWER_TIMEOUT_S:g} s")
        else:
            self._timer = self._loop.call_at(expires_at, self._check_oldest)

    def _fail(self, answer: Answer, error: ClusterError) -> None:
        problem = error.problem if isinstance(error, ConnectionLostError) else str(error)
        answer.set_exception(ConnectionLostError(cluster=self.cluster, address=self.address, problem=problem))
        if isinstance(answer, asyncio.Future):
            answer.exception()


class Network:
    """Opens connections of the process that is running, and knows them all."""

    def __init__(self, world: "World") -> None:
        self.links: list[Link] = []
        self._world = world

    async def open_connection(
        self, host: str, port: int, *, cluster: str, node_id: int = -1, **_: Any
    ) -> SimulatedConnection:
        """As `client.connection_setup.open_connection`: *host* is a simulated cluster's alias, *port* the number of a broker."""
        process = self._world.running
        assert process is not None
        simulated = self._world.clusters[host]
        await asyncio.sleep(self._world.latency_s(None))
        address = f"{host}:{port}"
        if port not in simulated.up:
            raise UnreachableError(cluster=cluster, addresses=address, problem="connection refused")
        link = Link(self._world, process, simulated, port)
        link.connection = SimulatedConnection(link, cluster=cluster, address=address, node_id=node_id)
        self.links = [one for one in self.links if not one.is_cut]
        self.links.append(link)
        return link.connection

    def of_process(self, process: Process) -> list[Link]:
        return [one for one in self.links if one.process is process and not one.is_cut]

    def of_broker(self, cluster: SimulatedCluster, node_id: int) -> list[Link]:
        return [
            one for one in self.links if one.cluster is cluster and one.node_id == node_id and not one.is_cut
        ]
