"""Reads the claims of a flow, for those that do not own it: they need the target alone, and change nothing."""

import asyncio
from typing import Final

from mirrorflow_core.errors import InternalTopicUnavailableError, NotAuthorizedError
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.admin.log_reader import LogCache, log_spans, read_log
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.flow_topics import FlowTopics

# How old an answer of `FlowEndWatch.has_ended` may be: reading the claims takes three requests, and each write asks.
ANSWER_MAX_AGE_S: Final = 0.5


async def read_newest_claim(
    target: Cluster, topics: FlowTopics, logs: LogCache | None = None, *, must_exist: bool = False
) -> Claim | None:
    """Returns the claim of the flow's last owner; None if it was never owned, or the topic may not be seen. *logs* shortens repeated calls.

    Raises ClusterError, also while the claims have no leader: they may then have an end of the flow. With *must_exist* a topic
    that is missing, or may not be seen, is an error, too.
    """
    topic = topics.claims.topic
    await target.refresh([topic])
    if target.leader(*topics.claims) is None:
        known = target.metadata.topics.get(topic)
        if known is not None and known.error in {UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED}:
            if must_exist:
                target.raise_for(known.error, "Metadata", topic)
            return None
        raise InternalTopicUnavailableError(
            cluster=target.alias, topic=topic, leaderless=topics.claims.partition
        )
    span = (await log_spans(target, [topics.claims])).get(topics.claims)
    batches = await read_log(target, topics.claims, topics.claim_in, span=span, cache=logs)
    committed = decided_records(batches, Claim).committed
    return committed[-1] if committed else None


class FlowEndWatch:
    """Whether a switchover has ended a flow, by its source alias, as a connector that does not own it obeys."""

    def __init__(self, source_alias: str, target: Cluster) -> None:
        self.ended_by = ""  # the id of the switchover; as last read
        self._topics = FlowTopics(source_alias=source_alias, connector="", offsets="", target_topic=str)
        self._target = target
        self._logs = LogCache()
        self._lock = asyncio.Lock()
        self._asked_s = float("-inf")  # loop time

    async def has_ended(self) -> bool:
        """As `read`, with an answer that is at most ANSWER_MAX_AGE_S old, which concurrent callers share."""
        now = asyncio.get_running_loop().time
        async with self._lock:
            if now() - self._asked_s > ANSWER_MAX_AGE_S:
                asked_s = now()
                await self.read()
                self._asked_s = asked_s
            return self.ended_by != ""

    async def read(self) -> bool:
        """Returns whether the flow has ended. While its claims have no leader, it is as before. Raises ClusterError.

        False for a user who may not read the claims.
        """
        try:
            newest = await read_newest_claim(self._target, self._topics, self._logs)
        except (InternalTopicUnavailableError, NotAuthorizedError):
            newest = None
        if newest is not None:
            self.ended_by = newest.ended
        return self.ended_by != ""
