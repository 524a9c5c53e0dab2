"""Holding the retention of target topics, and giving it back (`flow.holding` decides).

Promises: what a topic had is in the topic of decisions before it is changed; nothing is given back while another job's lease
runs; a step that was done twice, or left in the middle by a kill, does no harm.
"""

from collections.abc import Callable, Collection, Mapping

from mirrorflow_replicator.flow.holding import (
    FOR_EVER,
    LEASE_MS,
    OVER_MS,
    RESTORED_MS,
    Hold,
    Lease,
    changed,
    restoring,
)
from mirrorflow_replicator.flow.topic_configs import ConfigChange
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog


class Retention:
    """Of one flow's target topics. *log* is read here when it matters."""

    def __init__(self, target: Cluster, log: IdentityLog, *, now_ms: Callable[[], int]) -> None:
        self._target = target
        self._log = log
        self._now_ms = now_ms

    async def hold(self, holder: str, before: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
        """Keep the topics of *before* for ever, until `give_up`; the sentences of what was refused. Raises ClusterError."""
        known = (await self._log.read()).holds
        holds = [
            # Held already, it shows the other's value: what it had before that one is what counts.
            Hold(holder=holder, topic=topic, before={**values, **known.before(topic)})
            for topic, values in sorted(before.items())
        ]
        if not holds:
            return ()
        now_ms = self._now_ms()
        await self._log.decide([*holds, Lease(holder=holder, until_ms=now_ms + LEASE_MS)], now_ms=now_ms)
        return await self.renew(holder, {hold.topic: tuple(hold.before) for hold in holds})

    async def renew(self, holder: str, settings: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        """Say that *holder* still holds *settings* by topic, and see that they are as it wants them. Raises ClusterError.

        What somebody has set meanwhile is held as well, and noted: it is what will be given back.
        """
        now_ms = self._now_ms()
        lease = Lease(holder=holder, until_ms=now_ms + LEASE_MS)
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
        """*holder* holds nothing any more; `settle` gives it back. Raises ClusterError."""
        await self._log.decide([Lease(holder=holder, until_ms=OVER_MS)], now_ms=self._now_ms())

    async def settle(self) -> tuple[str, ...]:
        """Give back what nobody holds any more, whoever held it; the sentences of what was refused. Raises ClusterError."""
        now_ms = self._now_ms()
        holds = (await self._log.read()).holds
        holders, topics = holds.over(now_ms)
        if not holders:
            return ()
        found = await admin.describe_topic_configs(self._target, sorted(topics))
        changes = {topic: restoring(entries, holds.before(topic)) for topic, entries in found.items()}
        refused = await self._alter(changes, "cannot be given back")
        if not refused:
            over = [Lease(holder=holder, until_ms=RESTORED_MS) for holder in sorted(holders)]
            await self._log.decide(over, now_ms=now_ms)
        return refused

    async def held(self) -> frozenset[str]:
        """Target topics whose retention is to be left alone. Raises ClusterError."""
        return (await self._log.read()).holds.active(self._now_ms())

    async def _alter(self, changes: Mapping[str, Collection[ConfigChange]], what: str) -> tuple[str, ...]:
        wanted = {topic: tuple(of_topic) for topic, of_topic in changes.items() if of_topic}
        if not wanted:
            return ()
        answers = await admin.alter_topic_configs(self._target, wanted)
        return tuple(
            f"The retention of target topic {topic} {what}: {refusal}"
            for topic, refusal in sorted(answers.items())
            if refusal is not None
        )
