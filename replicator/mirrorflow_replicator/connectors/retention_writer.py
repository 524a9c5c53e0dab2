"""Holds the retention of target topics during bulk jobs, and restores it (`mirrorflow_core.retention_hold` decides).

Guarantees: a topic's settings are in the identity topic before they are changed; nothing is restored while
another job's lease runs; a step that was done twice, or interrupted by a kill, does no harm.
"""

from collections.abc import Callable, Collection, Mapping

from mirrorflow_core.retention_hold import (
    FOR_EVER,
    LEASE_MS,
    OVER_MS,
    RESTORED_MS,
    Hold,
    RetentionLease,
    changed,
    restoring,
)
from mirrorflow_core.topic_configs import ConfigChange
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog


class RetentionWriter:
    """Retention holds on one flow's target topics.

    Methods read *log* again where its newest state matters.
    """

    def __init__(self, target: Cluster, log: DecisionLog, *, now_ms: Callable[[], int]) -> None:
        self._target = target
        self._log = log
        self._now_ms = now_ms

    async def hold(self, holder: str, before: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
        """Holds the topics of *before* until `give_up`; returns messages for what was refused.

        Raises ClusterError.
        """
        known = (await self._log.read()).holds
        holds = [
            # A topic that is held already shows the other hold's value; what it had before that one counts.
            Hold(holder=holder, topic=topic, before={**values, **known.before(topic)})
            for topic, values in sorted(before.items())
        ]
        if not holds:
            return ()
        now_ms = self._now_ms()
        await self._log.decide(
            [*holds, RetentionLease(holder=holder, until_ms=now_ms + LEASE_MS)], now_ms=now_ms
        )
        return await self.renew(holder, {hold.topic: tuple(hold.before) for hold in holds})

    async def renew(self, holder: str, settings: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        """Extends the lease of *holder* on *settings* by topic, and sets again what was changed.

        Raises ClusterError.

        A value that a user set meanwhile is held as well, and noted: it is what will be restored.
        """
        now_ms = self._now_ms()
        lease = RetentionLease(holder=holder, until_ms=now_ms + LEASE_MS)
        holds = (await self._log.decide([lease], now_ms=now_ms)).holds
        found = await admin.describe_topic_configs(self._target, sorted(settings))
        news = {
            topic: changed(found.get(topic, ()), names, holds.before(topic))
            for topic, names in settings.items()
        }
        if any(news.values()):
            noted = [
                Hold(holder=holder, topic=t, before=one, is_change=True) for t, one in news.items() if one
            ]
            await self._log.decide(noted, now_ms=now_ms)
        changes = {
            topic: [ConfigChange(name=name, value=FOR_EVER) for name in names]
            for topic, names in settings.items()
            if any(entry.name in names and entry.value != FOR_EVER for entry in found.get(topic, ()))
        }
        return await self._alter(changes, "cannot be held")

    async def give_up(self, holder: str) -> None:
        """Ends the lease of *holder*; `settle` restores the settings. Raises ClusterError."""
        await self._log.decide([RetentionLease(holder=holder, until_ms=OVER_MS)], now_ms=self._now_ms())

    async def settle(self) -> tuple[str, ...]:
        """Restores what is no longer held; returns messages for what was refused. Raises ClusterError."""
        now_ms = self._now_ms()
        holds = (await self._log.read()).holds
        holders, topics = holds.over(now_ms)
        if not holders:
            return ()
        found = await admin.describe_topic_configs(self._target, sorted(topics))
        changes = {topic: restoring(entries, holds.before(topic)) for topic, entries in found.items()}
        refused = await self._alter(changes, "cannot be given back")
        if not refused:
            over = [RetentionLease(holder=holder, until_ms=RESTORED_MS) for holder in sorted(holders)]
            await self._log.decide(over, now_ms=now_ms)
        return refused

    async def held(self) -> frozenset[str]:
        """Returns the target topics whose retention must be left alone. Raises ClusterError."""
        return (await self._log.read()).holds.active(self._now_ms())

    async def _alter(self, changes: Mapping[str, Collection[ConfigChange]], what: str) -> tuple[str, ...]:
        wanted = {topic: tuple(of_topic) for topic, of_topic in changes.items() if of_topic}
        if not wanted:
            return ()
        answers = await admin.alter_topic_configs(self._target, wanted)
        return tuple(
            f"The retention of target topic {topic} {what}: {refusal}."
            for topic, refusal in sorted(answers.items())
            if refusal is not None
        )
