"""Retention holds: which target topics keep everything while a bulk job runs, and their earlier settings.

A bulk job writes records older than the target would keep, so it sets the retention to unlimited. Before that
it writes a hold to the identity topic, so that the settings are restored for
certain: by the job when it ends, or, if it was killed, by the next job, or by the connector's sync of settings
once the lease has expired. This module does no I/O and reads no clock.

The topic `mm2-identity.<source>.internal` on the target has one partition, is never compacted and never expires.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource

RETENTION: Final = ("retention.ms", "retention.bytes")
FOR_EVER: Final = "-1"
LEASE_S: Final = 15 * 60.0  # a job renews it several times within this time
OVER_MS: Final = 1  # `until_ms` of a lease that was given up, settings not yet restored
RESTORED_MS: Final = 0
# Records that expire within a day count as old too, because a seed takes hours.
MARGIN_MS: Final = 86_400_000
SIZE_SHARE: Final = 0.8  # of retention.bytes; the copy's batches may be larger than the source's


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold of `holder` on target topic `topic`.

    `before`: the topic's own settings before the hold, None: inherited. `is_change`: these settings were
    changed during the hold, and are restored to these values when it ends.
    """

    holder: str
    topic: str
    before: Mapping[str, str | None]
    is_change: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLease:
    """All holds of `holder` are valid for LEASE_S since a reader first saw this record, by the reader's monotonic clock.

    `until_ms` is OVER_MS, RESTORED_MS, or any later time: what it is by the holder's clock means nothing on another host.
    """

    holder: str
    until_ms: int


HoldRecord = Hold | RetentionLease
_KINDS: Final[dict[str, type[Hold] | type[RetentionLease]]] = {"hold": Hold, "lease": RetentionLease}
_KEYS: Final[dict[type, tuple[str, list[str]]]] = {
    Hold: ("hold", ["holder", "topic"]),
    RetentionLease: ("lease", ["holder"]),
}


def identity_topic(source_alias: str) -> str:
    """Returns the name of the identity topic; always with ".", like the worker's internal topics of MM2."""
    return f"mm2-identity.{source_alias}.internal"


def encode_hold(record: HoldRecord) -> tuple[bytes, bytes]:
    """Returns key and value of the record in the identity topic, as compact JSON."""
    body = asdict(record)
    kind, names = _KEYS[type(record)]
    key = {"type": kind} | {name: body.pop(name) for name in names}
    return _dump(key), _dump(body)


def decode_hold(key: bytes, value: bytes) -> HoldRecord | None:
    """Returns the hold or lease in a record of the identity topic; None if it is none, or a later version wrote it."""
    try:
        head: dict[str, Any] = json.loads(key)
        kind = _KINDS[head.pop("type")]
        names = {field.name for field in fields(kind)}
        return kind(**{name: item for name, item in (head | json.loads(value)).items() if name in names})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


class Holds:
    """The holds in the records read so far; the first record of a hold and the last of a lease count."""

    def __init__(self) -> None:
        self._holds: dict[str, dict[str, Hold]] = {}  # by topic and holder, oldest first
        self._changes: dict[str, dict[str, str | None]] = {}  # by topic, changes during the hold
        self._leases: dict[str, tuple[int, float]] = {}  # `until_ms`, and when that was seen

    def take(self, record: HoldRecord, now_s: float) -> None:
        """Applies the next record, which was read at *now_s*. All times of this class are by one monotonic clock."""
        if isinstance(record, RetentionLease):
            self._leases[record.holder] = record.until_ms, now_s
            return
        if record.is_change:
            self._changes.setdefault(record.topic, {}).update(record.before)
            return
        if not self._open(record.topic):
            self._changes.pop(record.topic, None)  # changes during earlier holds
        self._holds.setdefault(record.topic, {}).setdefault(record.holder, record)

    @property
    def holders(self) -> frozenset[str]:
        """The holders whose holds are not restored."""
        return frozenset(holder for holder, (until_ms, _) in self._leases.items() if until_ms != RESTORED_MS)

    def active(self, now_s: float) -> frozenset[str]:
        """Returns the topics under a valid hold, whose retention must not be changed."""
        return frozenset(
            topic
            for topic, holders in self._holds.items()
            if any(self._is_valid(holder, now_s) for holder in holders)
        )

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose holds are not restored, whether or not their leases are valid."""
        return frozenset(topic for topic in self._holds if self._open(topic))

    def before(self, topic: str) -> Mapping[str, str | None]:
        """Returns the settings to restore on *topic*; empty if it has no hold.

        These are its settings before the oldest hold that is not restored, with later changes by users.
        """
        open_ = self._open(topic)
        return {**open_[0].before, **self._changes.get(topic, {})} if open_ else {}

    def over(self, now_s: float) -> tuple[frozenset[str], frozenset[str]]:
        """Returns holders with expired leases, not yet restored, and their topics without a valid hold."""
        holders = frozenset(holder for holder in self.holders if not self._is_valid(holder, now_s))
        active = self.active(now_s)
        topics = frozenset(
            topic
            for topic, of_topic in self._holds.items()
            if topic not in active and holders & of_topic.keys()
        )
        return holders, topics

    def _open(self, topic: str) -> list[Hold]:
        """Returns the holds of *topic* that are not restored, oldest first."""
        open_ = self.holders
        return [hold for holder, hold in self._holds.get(topic, {}).items() if holder in open_]

    def _is_valid(self, holder: str, now_s: float) -> bool:
        until_ms, seen_s = self._leases.get(holder, (RESTORED_MS, 0.0))
        return until_ms > OVER_MS and now_s - seen_s < LEASE_S


def would_delete(entries: Collection[ConfigEntry], *, has_old: bool, bytes_max: int) -> dict[str, str | None]:
    """Returns the current settings of a target topic that would delete arriving records; None: inherited.

    *has_old*: the source has records older than the topic keeps, or soon will. *bytes_max*: size of its
    largest source partition.
    """
    by_name = {entry.name: entry for entry in entries}
    policy = by_name.get("cleanup.policy")
    if policy is None or "delete" not in (policy.value or ""):
        return {}
    deleting: dict[str, str | None] = {}
    for name, matters in (
        ("retention.ms", has_old),
        ("retention.bytes", bytes_max > SIZE_SHARE * limit_of(by_name.get("retention.bytes"))),
    ):
        entry = by_name.get(name)
        if entry is not None and limit_of(entry) != float("inf") and matters:
            deleting[name] = own_value(entry)
    return deleting


def limit_of(entry: ConfigEntry | None) -> float:
    """Returns a limit as a number; infinite for -1 and for values that are not shown."""
    value = "" if entry is None else entry.value or ""
    return float(value) if value.isdecimal() else float("inf")


def changed(
    entries: Collection[ConfigEntry], names: Collection[str], before: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Returns the held settings *names* that were changed meanwhile, with values; None: removed."""
    return {
        entry.name: own_value(entry)
        for entry in entries
        if entry.name in names and entry.value != FOR_EVER and own_value(entry) != before.get(entry.name)
    }


def own_value(entry: ConfigEntry) -> str | None:
    """Returns the topic's own value; None if it is inherited."""
    return entry.value if entry.source is ConfigSource.TOPIC else None


def restoring(entries: Collection[ConfigEntry], before: Mapping[str, str | None]) -> tuple[ConfigChange, ...]:
    """Returns the changes that restore a topic's retention; settings changed during the hold are kept."""
    now = {entry.name: entry.value for entry in entries if entry.source is ConfigSource.TOPIC}
    return tuple(
        ConfigChange(name=name, value=value)
        for name, value in sorted(before.items())
        if now.get(name) == FOR_EVER and value != FOR_EVER
    )
