"""Reads the settings of the target that decide how records are written: timestamp types and expirations."""

import asyncio
import contextlib
from collections.abc import Callable, Collection

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.session import PRODUCER_EXPIRATION_MS, CopySession
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.writer.write_mode import plain_age_limit_ms
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.position_committer import PositionCommitter

TIMESTAMP_TYPE = "message.timestamp.type"
# Far less than the time between two checks of a broker (producer.id.expiration.check.interval.ms, ten
# minutes).
READ_EVERY_S = 15.0
PRODUCER_KEY = "producer.id.expiration.ms"
TRANSACTIONAL_ID_KEY = "transactional.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_MS = 7 * 86_400_000


async def note_log_append_time_topics(
    target: Cluster, copiers: Collection[PartitionCopier], session: CopySession
) -> None:
    """Notes which target topics of *copiers* use LogAppendTime, where that may be read. Raises ClusterError."""
    topics = sorted({copier.target_topic for copier in copiers})
    kinds = await admin.describe_topic_setting(target, topics, TIMESTAMP_TYPE)
    session.note_log_append_time(topic for topic in topics if kinds.get(topic) == "LogAppendTime")


class TargetExpiries:
    """The target's expiration settings, for all partition copiers of a task.

    Brokers may differ, so the smallest value counts. A broker that does not respond keeps its last one.
    """

    def __init__(self, target: Cluster, session: CopySession, committer: PositionCommitter) -> None:
        self._target = target
        self._session = session
        self._committer = committer
        self._by_broker: dict[int, dict[str, int]] = {}

    async def apply(self) -> None:
        """Reads the settings once. Raises ClusterError."""
        with contextlib.suppress(NotAuthorizedError):
            self._by_broker |= await admin.describe_brokers(
                self._target, [PRODUCER_KEY, TRANSACTIONAL_ID_KEY]
            )
        expires_ms = self._smallest(TRANSACTIONAL_ID_KEY, TRANSACTIONAL_ID_EXPIRATION_MS)
        self._committer.set_id_expiration(expires_ms / 1000)
        forgotten_ms = self._smallest(PRODUCER_KEY, PRODUCER_EXPIRATION_MS)
        self._session.limit_plain_age(plain_age_limit_ms(forgotten_ms))

    def _smallest(self, name: str, default: int) -> int:
        return min((broker[name] for broker in self._by_broker.values() if name in broker), default=default)

    async def follow(
        self, *, on_error: Callable[[MirrorFlowError], None], end_session: Callable[[str], None]
    ) -> None:
        """Applies the settings until cancelled.

        If leaders forget producers earlier than before, the session ends: the fence of the next one is young.
        """
        while True:
            await asyncio.sleep(READ_EVERY_S)
            before_ms = self._session.plain_age_limit_ms
            try:
                await self.apply()
            except MirrorFlowError as error:
                on_error(error)
            if self._session.plain_age_limit_ms < before_ms and self._session.is_fenced:
                end_session(f"{PRODUCER_KEY} of {self._target.alias} was lowered")
