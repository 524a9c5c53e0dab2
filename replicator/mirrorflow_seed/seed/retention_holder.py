"""Suspends target retention that would delete seeded records while a job runs, and restores it afterwards.

The flow's decision log records the changed settings (`mirrorflow_replicator.connectors.retention_writer`), so
that the connector restores them after a killed job.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.topics.retention_hold import MARGIN_MS, limit_of, would_delete
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.connectors.retention_writer import RetentionWriter
from mirrorflow_replicator.process import now_ms
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from mirrorflow_seed.seed.seed_plan import SeedRange

RENEW_EVERY_S: Final = 60.0  # a lease lasts 15 minutes; a renewal also sets again what was changed meanwhile
RESTORE_S: Final = 30.0  # a stopped pod has one minute, of which its tasks may use a third

log = logging.getLogger("mirrorflow.seed")


class RetentionHolder:
    """The retention hold of one run.

    *syncs_configs* is False if the source is an archive, whose topic settings are not synced at the end.
    """

    def __init__(self, flow: ClaimedFlow, *, syncs_configs: bool = True) -> None:
        self._flow = flow
        self._syncs_configs = syncs_configs
        self._names: dict[str, str] = {}  # held topics, source -> target
        self._holder = secrets.token_hex(8)
        self._retention = RetentionWriter(flow.target, flow.hold_log, now_ms=now_ms)
        self._held: dict[str, tuple[str, ...]] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, names: Mapping[str, str], ranges: Sequence[SeedRange]) -> None:
        """Holds retention for *ranges*; *names* maps source to target topics. Raises ClusterError."""
        try:
            before = await self._to_hold(names, ranges)
            refused = await self._retention.hold(self._holder, before)
        except NotAuthorizedError as error:
            log.warning("Retention is not held: %s", error)
            return
        for sentence in refused:
            log.warning("%s", sentence)
        if before:
            log.info("retention of %d target topics is held until the seed ends", len(before))
            self._held = {topic: tuple(values) for topic, values in before.items()}
            self._names = {topic: name for topic, name in names.items() if name in before}
            self._renewing = asyncio.create_task(self._renew())

    async def end(self) -> None:
        """Restores the retention, also what earlier jobs have left held.

        It first syncs the source's settings, so that a retention that was raised there applies here at once.
        """
        if self._renewing is not None:
            self._renewing.cancel()
        try:
            async with asyncio.timeout(RESTORE_S):
                over = {*self._flow.ended_holders, *((self._holder,) if self._held else ())}
                if over:
                    await self._retention.give_up(over)
                if self._names and self._syncs_configs:
                    await self._flow.sync_configs(self._names, held=await self._retention.held())
                refused = await self._retention.settle()
        except (MirrorFlowError, TimeoutError) as error:
            # The connector restores it when the lease expires.
            log.warning("Retention is not restored yet: %s", error or f"no response within {RESTORE_S:g} s")
            return
        for sentence in refused:
            log.warning("%s", sentence)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self._retention.renew(self._holder, self._held)
            except MirrorFlowError as error:
                log.warning("%s", error)

    async def _to_hold(
        self, names: Mapping[str, str], ranges: Sequence[SeedRange]
    ) -> dict[str, dict[str, str | None]]:
        left: dict[str, list[SeedRange]] = {}
        for seed_range in ranges:
            if seed_range.start < seed_range.end:
                left.setdefault(seed_range.topic, []).append(seed_range)
        entries = await admin.describe_topic_configs(
            self._flow.target, sorted(names[topic] for topic in left)
        )
        limits = {}
        for topic in left:
            named = {entry.name: entry for entry in entries.get(names[topic], ())}
            limits[topic] = limit_of(named.get("retention.ms"))
        old = await self._topics_with_old_records(left, limits)
        holds = await self._flow.hold_log.read()
        before = {
            names[topic]: {
                **would_delete(
                    entries.get(names[topic], ()),
                    has_old=topic in old,
                    bytes_max=max(seed_range.bytes for seed_range in of_topic),
                ),
                **holds.before(
                    names[topic]
                ),  # what a killed job still holds, but only for the time of its lease
            }
            for topic, of_topic in left.items()
        }
        return {topic: values for topic, values in before.items() if values}

    async def _topics_with_old_records(
        self, left: Mapping[str, Sequence[SeedRange]], limits: Mapping[str, float]
    ) -> frozenset[str]:
        """Returns the topics that may have records older than their copies' retention; queries the source once per limit.

        A partition whose leader does not answer counts as one with old records: it is copied later in the same seed.
        """
        topics = set()
        for limit in {limit for limit in limits.values() if limit != float("inf")}:
            asked = {
                seed_range.source: seed_range
                for topic, of_topic in left.items()
                if limits[topic] == limit
                for seed_range in of_topic
            }
            since_ms = max(0, now_ms() - int(limit) + MARGIN_MS)
            offsets = await admin.list_offsets(self._flow.source, tuple(asked), since_ms)
            topics |= {
                source.topic
                for source, listed in offsets.items()
                if listed.error or listed.offset < 0 or listed.offset > asked[source].start
            }
        return frozenset(topics)
