"""Retention of target topics that is held while old records arrive: who holds it, until when, and what it was before.

A bulk job writes records older than the target would keep. It sets the retention to "for ever" and says so here first, in
the topic of decisions (`flow.identity`), so that nobody forgets to take it back: the job when it ends, or, where it was
killed and its lease is over, the next job or the connector's pass over settings. Pure: times are given.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_replicator.flow.topic_configs import ConfigChange, ConfigEntry, ConfigSource

RETENTION: Final = ("retention.ms", "retention.bytes")
FOR_EVER: Final = "-1"
LEASE_MS: Final = 15 * 60_000  # a job renews it several times in that time
OVER_MS: Final = 1  # a lease given up, what it held not yet restored
RESTORED_MS: Final = 0
# Records that come of age within a day are held as well: a seed takes hours.
MARGIN_MS: Final = 86_400_000
SIZE_SHARE: Final = 0.8  # of retention.bytes; the copy's batches may be larger than the source's


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """*holder* keeps *topic* (on the target) for ever; `before` are its own settings until then, None where it had none.

    `is_change`: somebody has set these while they were held, and is to find them so when they are given back.
    """

    holder: str
    topic: str
    before: Mapping[str, str | None]
    is_change: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """All that *holder* holds is held until then."""

    holder: str
    until_ms: int


class Holds:
    """What is held, from the records read so far: of a hold the first counts, of a lease the last."""

    def __init__(self) -> None:
        self._holds: dict[str, dict[str, Hold]] = {}  # by topic and holder, the oldest first
        self._changes: dict[str, dict[str, str | None]] = {}  # by topic, since it is held
        self._leases: dict[str, int] = {}

    def take(self, record: Hold | Lease) -> None:
        """The next record."""
        if isinstance(record, Lease):
            self._leases[record.holder] = record.until_ms
            return
        if record.is_change:
            self._changes.setdefault(record.topic, {}).update(record.before)
            return
        if not self._open(record.topic):
            self._changes.pop(record.topic, None)  # of holds that are long over
        self._holds.setdefault(record.topic, {}).setdefault(record.holder, record)

    def active(self, now_ms: int) -> frozenset[str]:
        """Topics whose retention is to be left alone."""
        return frozenset(
            topic
            for topic, holders in self._holds.items()
            if any(self._leases.get(holder, RESTORED_MS) > now_ms for holder in holders)
        )

    def before(self, topic: str) -> Mapping[str, str | None]:
        """What *topic* is to have again: what it had before the oldest of the holds that are not restored, and what somebody has
        set since; empty if there is none.
        """
        open_ = self._open(topic)
        return {**open_[0].before, **self._changes.get(topic, {})} if open_ else {}

    def over(self, now_ms: int) -> tuple[frozenset[str], frozenset[str]]:
        """Holders whose time is over and that are not restored, and the topics of theirs that nobody else holds."""
        holders = frozenset(
            holder for holder, until_ms in self._leases.items() if RESTORED_MS < until_ms <= now_ms
        )
        active = self.active(now_ms)
        topics = frozenset(
            topic
            for topic, of_topic in self._holds.items()
            if topic not in active and holders & of_topic.keys()
        )
        return holders, topics

    def _open(self, topic: str) -> list[Hold]:
        """Those of *topic* that are not restored, the oldest first."""
        return [
            hold
            for holder, hold in self._holds.get(topic, {}).items()
            if self._leases.get(holder, RESTORED_MS) != RESTORED_MS
        ]


def would_delete(entries: Collection[ConfigEntry], *, has_old: bool, bytes_max: int) -> dict[str, str | None]:
    """The settings of a target topic that would delete what arrives, as they are now: None where they are inherited.

    *has_old*: the source has records that are older than the topic keeps (or soon will be). *bytes_max*: of its largest
    partition there.
    """
    by_name = {entry.name: entry for entry in entries}
    policy = by_name.get("cleanup.policy")
    if policy is None or "delete" not in (policy.value or ""):
        return {}
    found: dict[str, str | None] = {}
    for name, matters in (
        ("retention.ms", has_old),
        ("retention.bytes", bytes_max > SIZE_SHARE * limit_of(by_name.get("retention.bytes"))),
    ):
        entry = by_name.get(name)
        if entry is not None and limit_of(entry) != float("inf") and matters:
            found[name] = own_value(entry)
    return found


def limit_of(entry: ConfigEntry | None) -> float:
    """The number of a limit; infinite for -1 and for what is not shown."""
    value = "" if entry is None else entry.value or ""
    return float(value) if value.isdecimal() else float("inf")


def changed(
    entries: Collection[ConfigEntry], names: Collection[str], before: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Of the held settings *names* those that somebody has set meanwhile, and to what; None where they took it away."""
    return {
        entry.name: own_value(entry)
        for entry in entries
        if entry.name in names and entry.value != FOR_EVER and own_value(entry) != before.get(entry.name)
    }


def own_value(entry: ConfigEntry) -> str | None:
    """What the topic itself has; None where it inherits."""
    return entry.value if entry.source is ConfigSource.TOPIC else None


def restoring(entries: Collection[ConfigEntry], before: Mapping[str, str | None]) -> tuple[ConfigChange, ...]:
    """What gives a topic its retention back; what somebody has changed since is left as it is."""
    now = {entry.name: entry.value for entry in entries if entry.source is ConfigSource.TOPIC}
    return tuple(
        ConfigChange(name=name, value=value)
        for name, value in sorted(before.items())
        if now.get(name) == FOR_EVER and value != FOR_EVER
    )
