"""Carries the batches of one partition between its brokers: the whole way of a batch, from top to bottom.

    client.broker_reader      fetches, and calls `fetched`; when all partitions of the response have their part, it has each
                              connection send what is ready (`broker_routes.BrokerRoutes.pump`)
    copying.partition         decides; `copying.read_cursor` and `copying.batch_packer` find the batches and pack them
    client.broker_writer      calls `next_batch` when its connection has room, and later says what became of the batch

Each event is passed to the partition's state machine, and the effects that it returns are carried out in order: the usual ones
here (`apply`), the rare ones by the task (`TaskServices`). Nothing is queued in between: if its connection has room, a record is
sent in the same turn of the loop in which it arrived.

A partition that needs the transaction of its task asks by `JOIN_TRANSACTION`: `copying.transaction` decides when it becomes a
member (`joined`) and when its positions are committed; `transaction_runner` asks the brokers.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mirrorflow_core.copying.effects import Effect, Effects, Signal
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.wire.fetch import FetchFrom, PartitionFetchResponse
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.broker_writer import ProduceConnection

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.schema_wait import SchemaWait

_READY, _FETCH, _REPORT = Signal.READY, Signal.FETCH, Signal.REPORT


class TaskServices(Protocol):
    """What the dispatch of a partition uses of its task."""

    now_ms: int  # wall clock, as of the beginning of this turn of the loop

    def count_buffered(self, bytes_more: int) -> None:
        """Counts what was fetched and not yet sent, over all partitions."""

    def changed(self, copier: PartitionCopier) -> None:
        """Notes that the report of *copier* has changed."""

    def carry_out(self, dispatch: "PartitionDispatch", effect: Effect) -> None:
        """Carries out a rare *effect* of the partition of *dispatch*."""

    def sent_in_transaction(self, size_bytes: int) -> None:
        """Counts what was sent in the open transaction."""

    def delivered(self, copier: PartitionCopier, span: Span, base_offset: int) -> None:
        """Notes that *span* is on the target from *base_offset* on."""


class PartitionDispatch:
    """One partition with its reader and its connection: what both of them call."""

    __slots__ = (
        "_awaits_schemas", "_counted_bytes", "_drained", "_packer", "_schemas", "_services", "connection", "copier",
        "partition", "reader", "target_topic", "transactional_id",
    )  # fmt: skip

    def __init__(
        self, copier: PartitionCopier, services: TaskServices, schemas: "SchemaWait | None" = None
    ) -> None:
        self.copier = copier
        self.target_topic, self.partition = copier.target
        self.transactional_id: str | None = None  # of the newest batch; None outside of a transaction
        self.reader: BrokerReader | None = None
        self.connection: ProduceConnection | None = None
        self._drained = asyncio.Event()
        self._services = services
        self._packer = copier.packer
        self._counted_bytes = 0
        self._schemas = schemas  # None: no record waits for its schema
        self._awaits_schemas = False

    # -- fetch

    def next_fetch(self) -> FetchFrom | None:
        """Returns where to fetch from next; None to fetch nothing now."""
        assert self.reader is not None
        if self._awaits_schemas:
            return None
        return self.copier.next_fetch(self.reader.partition_bytes)

    def may_fetch_soon(self) -> bool:
        """Returns whether `next_fetch` may change from None to an offset at any moment."""
        return not self._awaits_schemas and self.copier.may_fetch_soon()

    def fetched(self, response: PartitionFetchResponse, asked_offset: int) -> None:
        """Receives what was fetched at *asked_offset*; it is fetched again later if its schemas are not there yet."""
        schemas = self._schemas
        if schemas is not None and schemas.hold(
            self.copier.topic, response.records, self._schemas_arrived, self._note_schema_wait
        ):
            self._awaits_schemas = True
            self._note_schema_wait()
            return
        self.apply(self.copier.fetched(response, asked_offset))

    def _note_schema_wait(self) -> None:
        assert self._schemas is not None
        self.copier.health.note_obstacle(self._schemas.obstacle)

    def _schemas_arrived(self) -> None:
        self._awaits_schemas = False
        self.apply((_FETCH,))

    # -- pack and send

    def next_batch(self) -> Buffer | None:
        """Returns the next batch to send; None if there is none now."""
        services, copier, connection = self._services, self.copier, self.connection
        assert connection is not None
        data, effects = copier.next_batch(services.now_ms, connection.request_bytes)
        self.transactional_id = transactional_id = copier.transactional_id
        if data is not None and transactional_id is not None:
            services.sent_in_transaction(len(data))
        self.apply(effects)
        return data

    # -- acknowledge

    def acknowledged(self, base_offset: int, append_time_ms: int) -> None:
        """The oldest batch in flight is on the target from *base_offset* on."""
        copier, stream = self.copier, self.copier.stream
        assert stream is not None
        span, delivered = stream.in_flight[0], stream.delivered
        effects = copier.acknowledged(base_offset, append_time_ms, self._services.now_ms)
        if stream.delivered is not delivered:
            self._services.delivered(copier, span, base_offset)
        self.apply(effects)

    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> None:
        """The oldest batch in flight was refused with an error code; *records* are the indexes of its refused records."""
        self.apply(self.copier.refused(code, message, records))

    def lost(self) -> None:
        """The oldest batch in flight got no response: it may or may not be in the target."""
        self.apply(self.copier.response_lost())

    def connected(self) -> None:
        """There is a new connection to the target's leader."""
        self.apply(self.copier.connected())

    # -- carry out

    def apply(self, effects: Effects) -> None:
        """Carries out the effects of an event."""
        queued_bytes = self._packer.queued_bytes
        if queued_bytes != self._counted_bytes:
            self._services.count_buffered(queued_bytes - self._counted_bytes)
            self._counted_bytes = queued_bytes
        for effect in effects:
            if effect is _READY:
                if self.connection is not None and self.copier.stream is not None:
                    self.connection.ready(self)
            elif effect is _REPORT:
                self._services.changed(self.copier)
            elif effect is _FETCH:
                if self.reader is not None:
                    self.reader.changed(self.copier.topic, self.copier.partition)
            else:
                self._services.carry_out(self, effect)

    def drained(self) -> None:
        """Nothing is in flight any more, and nothing more is sent for now."""
        self._drained.set()

    async def wait_until_drained(self) -> None:
        """Returns when everything in flight has a response or is lost, of a partition that sends nothing more."""
        while not self.copier.is_drained:
            self._drained.clear()
            await self._drained.wait()

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to the leader of its target partition."""
        return self.connection is not None and self.connection.is_connected

    # -- the routes

    def read_from(self, reader: BrokerReader, topic_id: bytes) -> None:
        """Fetches by *reader* from now on."""
        if self.reader is not None and self.reader is not reader:
            self.reader.remove(self.copier.topic, self.copier.partition)
        self.reader = reader
        reader.add(self.copier.topic, self.copier.partition, topic_id, self)

    def write_to(self, connection: ProduceConnection) -> None:
        """Writes through *connection* from now on."""
        if self.connection is not None:
            self.connection.remove(self)
        self.connection = connection
        self.apply(self.copier.leader_changed())
        connection.add(self)

    def disconnect(self) -> None:
        """Ends reading and writing: it no longer belongs to this task."""
        if self.reader is not None:
            self.reader.remove(self.copier.topic, self.copier.partition)
        if self.connection is not None:
            self.connection.remove(self)
