"""Reads the claims of a flow, for those that do not own it: they need the target alone, and change nothing."""

import asyncio
from typing import Final

from mirrorflow_core.errors import InternalTopicUnavailableError, NotAuthorizedError
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimView
from mirrorflow_core.writer.transaction_log import DecidedRecords, decided_records
from mirrorflow_kafka.admin.transaction_log_reader import LogCache, log_spans, read_log
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.flow_topics import FlowTopics

# How old the response of `FlowEndWatch.has_ended` may be: reading the claims takes three requests, and each write asks.
RESPONSE_MAX_AGE_S: Final = 0.5


async def read_newest_claim(
    target: Cluster, topics: FlowTopics, logs: LogCache | None = None
) -> Claim | None:
    """Returns the claim of the flow's last owner; None if it was never owned, or the topic may not be seen. *logs* shortens repeated calls.

    Raises ClusterError, also while the claims have no leader: they may then have an end of the flow.
    """
    committed = (await read_decided_claims(target, topics, logs)).committed
    return committed[-1] if committed else None


async def read_decided_claims(
    target: Cluster, topics: FlowTopics, logs: LogCache | None = None
) -> DecidedRecords[Claim]:
    """As `read_newest_claim`, with all claims, and those in open transactions."""
    topic = topics.claims.topic
    await target.refresh([topic])
    if target.leader(*topics.claims) is None:
        known = target.metadata.topics.get(topic)
        if known is not None and known.error in {UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED}:
            return DecidedRecords((), ())
        raise InternalTopicUnavailableError(
            cluster=target.alias, topic=topic, leaderless=topics.claims.partition
        )
    span = (await log_spans(target, [topics.claims])).get(topics.claims)
    batches = await read_log(target, topics.claims, topics.claim_in, span=span, cache=logs)
    return decided_records(batches, Claim)


async def updated_view(view: ClaimView, target: Cluster, topics: FlowTopics, logs: LogCache) -> ClaimView:
    """Returns *view* after one more read. *logs* is of the same topic each time.

    Raises ClusterError, also if the claims have no leader, unless an end of the flow is known: they may have one since.
    """
    try:
        newest = await read_newest_claim(target, topics, logs)
    except NotAuthorizedError as error:
        return view.after_refusal(str(error))
    except InternalTopicUnavailableError as error:
        known = view.after_no_leader(str(error))
        if known is None:
            raise
        return known
    return view.after_read(
        newest, missing=f"Topic {topics.claims.topic} of {target.alias} is hidden or deleted."
    )


class FlowEndWatch:
    """Whether a switchover has ended a flow, by its source alias, as a connector that does not own it obeys."""

    def __init__(self, source_alias: str, target: Cluster) -> None:
        self._topics = FlowTopics(source_alias=source_alias, connector="", offsets="", target_topic=str)
        self._target = target
        self._logs = LogCache()
        self._lock = asyncio.Lock()
        self._view = ClaimView()
        self._asked_s = float("-inf")  # loop time

    @property
    def ended_by(self) -> str | None:
        """The id of the switchover that has ended the flow, as last read."""
        return self._view.ended_by

    async def has_ended(self) -> bool:
        """Returns whether the flow has ended, as it was at most RESPONSE_MAX_AGE_S ago. Concurrent callers share a read.

        Raises ClusterError.
        """
        now = asyncio.get_running_loop().time
        async with self._lock:
            if now() - self._asked_s > RESPONSE_MAX_AGE_S:
                asked_s = now()
                self._view = await updated_view(self._view, self._target, self._topics, self._logs)
                self._asked_s = asked_s
            return self.ended_by is not None
