"""How a simulated broker answers fetches: sessions, long polls, epochs that diverged.

`FetchManager` and `FetchSession` (KIP-227), `Partition.readRecords`, `DelayedFetch`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirrorflow_core.partitions import TopicPartition
from tests.model import errors
from tests.model.errors import RefusedError
from tests.model.partition_log import UNDEFINED, PartitionLog
from tests.model.wire import FLEXIBLE_FETCH, Fetched, FetchRequest, Wanted, read_fetch, write_fetched

if TYPE_CHECKING:
    from tests.model.broker import Partition, SimulatedCluster

Key = tuple[bytes, int]
NO_SESSION, FULL, FINAL = 0, 0, -1  # FetchMetadata
_ids = itertools.count(1)


@dataclass(slots=True)
class Session:
    """What one client wants of one broker."""

    session_id: int
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    told: dict[Key, tuple[int, int, int]] = field(default_factory=dict)


class Fetching:
    """The fetches of one cluster."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._sessions: dict[tuple[int, int], Session] = {}  # of a broker
        self._next_id = itertools.count(1)

    def handle(self, node_id: int, version: int, body: bytes, reply: Callable[[Any], None]) -> None:
        """Answer at once, or when there is something, or when the client's patience is over."""
        request = read_fetch(version, body)
        try:
            session = self._session(node_id, request)
        except RefusedError as error:
            reply(write_fetched(version, {}, session_id=NO_SESSION, error=error.code))
            return
        wanted = request.wanted if session is None else session.wanted
        is_over = False

        def attempt(*, is_last: bool = False) -> bool:
            nonlocal is_over
            if is_over:
                return True
            answers = self._read_all(node_id, version, wanted, request)
            if not is_last and not any(_has_news(one) for one in answers.values()):
                return False
            is_over = True
            session_id = NO_SESSION
            if session is not None:
                session_id = session.session_id
                if request.session_epoch != FULL:
                    answers = {key: one for key, one in answers.items() if _is_sent(session, key, one)}
                session.told |= {key: _ends(one) for key, one in answers.items()}
            reply(write_fetched(version, answers, session_id=session_id))
            return True

        if request.max_wait_ms <= 0:
            attempt(is_last=True)
        elif not attempt():
            self._wait(version, wanted, request.max_wait_ms, attempt)

    def _wait(
        self, version: int, wanted: dict[Key, Wanted], wait_ms: int, attempt: Callable[..., bool]
    ) -> None:
        partitions = [one for key in wanted if (one := self._partition(version, key)[1]) is not None]

        def look() -> None:
            if attempt():
                done()

        def done() -> None:
            for one in partitions:
                one.watchers.pop(look, None)

        def late() -> None:
            done()
            attempt(is_last=True)

        for one in partitions:
            one.watchers[look] = None
        self._cluster.world.after(wait_ms / 1000, late)

    def _session(self, node_id: int, request: FetchRequest) -> Session | None:
        if request.session_epoch == FINAL:
            return None
        if request.session_epoch == FULL:
            session = Session(next(self._next_id), wanted=dict(request.wanted))
            self._sessions[node_id, session.session_id] = session
            return session
        found = self._sessions.get((node_id, request.session_id))
        if found is None:
            raise RefusedError(errors.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != found.epoch:
            raise RefusedError(errors.INVALID_FETCH_SESSION_EPOCH)
        found.epoch += 1
        found.wanted |= request.wanted
        for key in request.wanted:
            found.told.pop(key, None)
        for key in request.forgotten:
            found.wanted.pop(key, None)
        return found

    def _partition(self, version: int, key: Key) -> tuple[TopicPartition | None, "Partition | None"]:
        topics = self._cluster.topics
        if version > FLEXIBLE_FETCH:
            name = next((name for name, topic in topics.items() if topic.topic_id.bytes == key[0]), None)
        else:
            name = key[0].decode()
        if name is None:
            return None, None
        at = TopicPartition(name, key[1])
        return at, self._cluster.partition(at)

    def _read_all(
        self, node_id: int, version: int, wanted: dict[Key, Wanted], request: FetchRequest
    ) -> dict[Key, Fetched]:
        # fetch.max.bytes of the broker (KIP-541); the first batch of the first partition that has any is given whole.
        left = min(request.max_bytes, int(self._cluster.configs["fetch.max.bytes"]))
        answers = {}
        for key in sorted(wanted):
            answers[key] = one = self._read(node_id, version, key, wanted[key], request, left)
            left -= len(one.records)
        return answers

    def _read(
        self, node_id: int, version: int, key: Key, wanted: Wanted, request: FetchRequest, most_bytes: int
    ) -> Fetched:
        at, _ = self._partition(version, key)
        if at is None:
            return Fetched(errors.UNKNOWN_TOPIC_ID)
        try:
            leader = self._cluster.led(node_id, at, epoch=wanted.leader_epoch)
            diverging = _diverging(leader.log, wanted)
        except RefusedError as error:
            return Fetched(error.code)
        log, stable = leader.log, leader.last_stable_offset
        if diverging is not None:
            return Fetched(0, log.high_watermark, stable, log.start, diverging=diverging)
        end = stable if request.is_committed else log.high_watermark
        records = b""
        if most_bytes > 0:
            records = log.read(wanted.offset, end, min(wanted.max_bytes, most_bytes))
        aborted = log.aborted_between(wanted.offset, end) if request.is_committed and records else ()
        return Fetched(0, log.high_watermark, stable, log.start, aborted, records)


def _diverging(log: PartitionLog, wanted: Wanted) -> tuple[int, int] | None:
    """Where the client's log is not the leader's any more (KIP-595); raises RefusedError where the offset is not there.

    Partition.readRecords.
    """
    ended = log.end_of_epoch(wanted.last_epoch) if wanted.last_epoch >= 0 else None
    is_there = log.start <= wanted.offset <= log.end
    if ended is None and is_there:
        return None
    if ended is None or ended == UNDEFINED or wanted.offset < log.start:
        raise RefusedError(errors.OFFSET_OUT_OF_RANGE)
    if ended.epoch < wanted.last_epoch or ended.end_offset < wanted.offset:
        return ended.epoch, ended.end_offset
    if not is_there:
        raise RefusedError(errors.OFFSET_OUT_OF_RANGE)
    return None


def _has_news(one: Fetched) -> bool:
    return bool(one.error or one.records or one.diverging)


def _ends(one: Fetched) -> tuple[int, int, int]:
    return one.high_watermark, one.last_stable_offset, one.log_start_offset


def _is_sent(session: Session, key: Key, one: Fetched) -> bool:
    """FetchSession.CachedPartition.maybeUpdateResponseData: what has not changed is left out."""
    return _has_news(one) or session.told.get(key) != _ends(one)
