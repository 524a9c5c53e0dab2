"""Holds the retention of target topics during bulk jobs, and restores it (`mirrorflow_core.topics.retention_hold` decides).

Guarantees: a topic's settings are in the identity topic before they are changed; nothing is restored while another job's lease
runs; a step that was done twice, or interrupted by a kill, does no harm.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.topics.retention_hold import (
    FOR_EVER,
    LEASE_S,
    OVER_MS,
    RESTORED_MS,
    Hold,
    RetentionLease,
    changed,
    restoring,
)
from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import HoldLog


class RetentionWriter:
    """Retention holds on one flow's target topics. Methods read *log* again where its newest state matters."""

    def __init__(self, target: Cluster, log: HoldLog, *, now_ms: Callable[[], int]) -> None:
        self._target = target
        self._log = log
        self._now_ms = now_ms

    async def hold(self, holder: str, before: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
        """Holds the topics of *before* until `give_up`; returns messages for what was refused. Raises ClusterError."""
        known = await self._log.read()
        holds = [
            # A topic that is held already shows the other hold's value; what it had before that one counts.
            Hold(holder=holder, topic=topic, before={**values, **known.before(topic)})
            for topic, values in sorted(before.items())
        ]
        if not holds:
            return ()
        now_ms = self._now_ms()
        await self._log.write(
            [*holds, RetentionLease(holder=holder, until_ms=now_ms + round(1000 * LEASE_S))], now_ms=now_ms
        )
        return await self.renew(holder, {hold.topic: tuple(hold.before) for hold in holds})

    async def renew(self, holder: str, settings: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        """Extends the lease of *holder* on *settings* by topic, and sets again what was changed.

        Raises ClusterError. A value that a user set meanwhile is held as well, and noted: it is what will be restored.
        """
        now_ms = self._now_ms()
        lease = RetentionLease(holder=holder, until_ms=now_ms + round(1000 * LEASE_S))
        holds = await self._log.write([lease], now_ms=now_ms)
        configs, unread, _ = await admin.try_describe_topic_configs(self._target, sorted(settings))
        changed_by_others = {
            topic: changed(configs.get(topic, ()), names, holds.before(topic))
            for topic, names in settings.items()
        }
        if any(changed_by_others.values()):
            noted = [
                Hold(holder=holder, topic=t, before=before, is_change=True)
                for t, before in changed_by_others.items()
                if before
            ]
            await self._log.write(noted, now_ms=now_ms)
        changes = {
            topic: [ConfigChange(name=name, value=FOR_EVER) for name in names]
            for topic, names in settings.items()
            if any(entry.name in names and entry.value != FOR_EVER for entry in configs.get(topic, ()))
        }
        return await self._alter(changes, unread, "cannot be held")

    async def give_up(self, holders: Iterable[str]) -> None:
        """Ends the leases of *holders*; `settle` restores the settings. Raises ClusterError."""
        over = [RetentionLease(holder=holder, until_ms=OVER_MS) for holder in sorted(holders)]
        await self._log.write(over, now_ms=self._now_ms())

    async def settle(self) -> tuple[str, ...]:
        """Restores what is no longer held; returns messages for what was refused. Raises ClusterError."""
        began_s = time.monotonic()  # a renewal that is written later is not read
        holds = await self._log.read()
        holders, topics = holds.over(began_s)
        if not holders:
            return ()
        configs, unread, _ = await admin.try_describe_topic_configs(self._target, sorted(topics))
        changes = {topic: restoring(entries, holds.before(topic)) for topic, entries in configs.items()}
        refused = await self._alter(changes, unread, "cannot be restored")
        if not refused:
            over = [RetentionLease(holder=holder, until_ms=RESTORED_MS) for holder in sorted(holders)]
            await self._log.write(over, now_ms=self._now_ms())
        return refused

    async def held(self) -> frozenset[str]:
        """Returns the target topics whose retention must be left alone. Raises ClusterError."""
        began_s = time.monotonic()
        return (await self._log.read()).active(began_s)

    @property
    def last_held(self) -> frozenset[str]:
        """The target topics that were held, or not restored, when the log was last read."""
        return self._log.held

    async def _alter(
        self, changes: Mapping[str, Collection[ConfigChange]], unread: Mapping[str, ClusterError], what: str
    ) -> tuple[str, ...]:
        """Makes *changes*; returns a message that begins with *what* for each refused topic, and each whose settings are *unread*."""
        wanted = {topic: tuple(of_topic) for topic, of_topic in changes.items() if of_topic}
        results = await admin.alter_topic_configs(self._target, wanted) if wanted else {}
        refused = {topic: f"{refusal}." for topic, refusal in results.items() if refusal is not None}
        refused |= {topic: str(error) for topic, error in unread.items()}
        return tuple(
            f"The retention of target topic {topic} {what}: {why}" for topic, why in sorted(refused.items())
        )
