"""Retention holds have a lease and holders, and restore the original settings."""

import json
from dataclasses import replace

import pytest

from mirrorflow_core.topics.retention_hold import (
    LEASE_S,
    OVER_MS,
    RESTORED_MS,
    Hold,
    Holds,
    RetentionLease,
    changed,
    decode_hold,
    encode_hold,
    identity_topic,
    restoring,
    would_delete,
)
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource

NOW_MS = 1_800_000_000_000  # the clock of the holder's host


@pytest.mark.parametrize("clock_error_ms", [-3_600_000, 0, 3_600_000])
def test_a_hold_is_active_until_its_lease_expires(clock_error_ms: int):
    """The clocks of other hosts do not matter. After expiry, the setting is restored once."""
    lease = RetentionLease(holder="a", until_ms=NOW_MS + clock_error_ms)
    holds = _holds(Hold(holder="a", topic="t", before={"retention.ms": "5"}), lease, at_s=100)

    assert holds.active(99 + LEASE_S) == {"t"}
    assert holds.over(99 + LEASE_S) == (frozenset(), frozenset())

    holds.take(lease, 200)

    assert holds.active(199 + LEASE_S) == {"t"}
    assert holds.active(200 + LEASE_S) == frozenset()
    assert holds.over(200 + LEASE_S) == (frozenset({"a"}), frozenset({"t"}))

    holds.take(RetentionLease(holder="a", until_ms=RESTORED_MS), 2_000)

    assert holds.over(2_000) == (frozenset(), frozenset())
    assert holds.before("t") == {}


def test_a_hold_ends_at_once_when_its_holder_releases_it():
    hold = Hold(holder="a", topic="t", before={"retention.ms": "5"})
    holds = _holds(hold, RetentionLease(holder="a", until_ms=NOW_MS), at_s=100)

    holds.take(RetentionLease(holder="a", until_ms=OVER_MS), 101)

    assert holds.active(101) == frozenset()
    assert holds.over(101) == (frozenset({"a"}), frozenset({"t"}))
    assert holds.holders == {"a"}


def test_a_second_holder_does_not_record_the_held_value_as_the_original():
    """The setting is not restored while any holder remains."""
    holds = _holds(
        Hold(holder="a", topic="t", before={"retention.ms": None}),
        RetentionLease(holder="a", until_ms=OVER_MS),
        Hold(holder="b", topic="t", before={"retention.ms": "-1"}),
        RetentionLease(holder="b", until_ms=NOW_MS),
    )

    assert holds.before("t") == {"retention.ms": None}
    assert holds.active(0) == {"t"}
    assert holds.over(0) == (frozenset({"a"}), frozenset())


def test_a_hold_without_a_lease_is_not_active():
    """The job was killed between the two records, before it changed a setting."""
    holds = _holds(Hold(holder="a", topic="t", before={"retention.ms": "5"}))

    assert holds.active(0) == frozenset()
    assert holds.over(0) == (frozenset(), frozenset())


def test_only_settings_that_would_delete_records_are_held():
    """These are retention.ms with old records and retention.bytes with a large partition, unless the topic is
    compacted.
    """
    entries = _entries(policy="delete", ms="100", size="1000")

    assert would_delete(entries, has_old=False, bytes_max=10) == {}
    assert would_delete(entries, has_old=True, bytes_max=10) == {"retention.ms": "100"}
    assert would_delete(entries, has_old=False, bytes_max=900) == {"retention.bytes": "1000"}
    assert would_delete(_entries(policy="compact", ms="100", size="-1"), has_old=True, bytes_max=1) == {}
    assert would_delete(_entries(policy="delete", ms="-1", size="-1"), has_old=True, bytes_max=10**12) == {}


def test_an_inherited_value_is_restored_by_removing_the_override():
    inherited = _entries(policy="delete", ms="100", size="-1", source=ConfigSource.DEFAULT)
    before = would_delete(inherited, has_old=True, bytes_max=1)

    changes = restoring(_entries(policy="delete", ms="-1", size="-1"), before)

    assert changes == (ConfigChange(name="retention.ms", value=None),)


def test_a_setting_that_a_user_changed_during_the_hold_is_kept():
    assert restoring(_entries(policy="delete", ms="77", size="-1"), {"retention.ms": "100"}) == ()


def test_a_value_set_during_the_hold_is_restored():
    """Either of two jobs may detect it. A hold that starts after both ignores it."""
    holds = _holds(
        Hold(holder="a", topic="t", before={"retention.ms": "5", "retention.bytes": None}),
        RetentionLease(holder="a", until_ms=NOW_MS),
        Hold(holder="b", topic="t", before={"retention.ms": "5"}),
        RetentionLease(holder="b", until_ms=NOW_MS),
        Hold(holder="b", topic="t", before={"retention.ms": "77"}, is_change=True),
    )

    assert holds.before("t") == {"retention.ms": "77", "retention.bytes": None}

    for holder in "ab":
        holds.take(RetentionLease(holder=holder, until_ms=RESTORED_MS), 0)

    assert holds.before("t") == {}

    holds.take(Hold(holder="c", topic="t", before={"retention.ms": "6"}), 0)
    holds.take(RetentionLease(holder="c", until_ms=NOW_MS), 0)

    assert holds.before("t") == {"retention.ms": "6"}


def test_a_setting_that_differs_from_the_held_value_was_changed_by_a_user():
    """This includes a removed setting.

    The original value does not count as a change, because some tools set it every minute.
    """
    before, names = {"retention.ms": "100"}, ("retention.ms",)
    inherited = _entries(policy="delete", ms="604800000", size="-1", source=ConfigSource.DEFAULT)

    assert changed(_entries(policy="delete", ms="77", size="9"), names, before) == {"retention.ms": "77"}
    assert changed(inherited, names, before) == {"retention.ms": None}
    assert changed(_entries(policy="delete", ms="100", size="9"), names, before) == {}
    assert changed(_entries(policy="delete", ms="-1", size="9"), names, before) == {}


def test_the_identity_topic_has_the_documented_name():
    assert identity_topic("east") == "mm2-identity.east.internal"


def test_records_are_decoded_as_encoded():
    hold = Hold(holder="a", topic="t", before={"retention.ms": None})
    for record in (hold, replace(hold, is_change=True), RetentionLease(holder="a", until_ms=3)):
        key, value = encode_hold(record)
        assert decode_hold(key, value) == record
        assert not set(json.loads(key)) & set(json.loads(value))


def test_fields_of_a_later_version_are_ignored():
    lease = RetentionLease(holder="a", until_ms=3)
    key, value = encode_hold(lease)

    assert decode_hold(key, json.dumps(json.loads(value) | {"colour": "red"}).encode()) == lease


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"[]", b"{}"),
        (b'{"type":"colour"}', b"{}"),
        (b'{"type":"hold"}', b"{}"),
        (b'{"type":"lease"}', b"[1]"),
        (b"\xff", b"{}"),
    ],
)
def test_other_records_are_ignored(key: bytes, value: bytes):
    """An unknown record in the topic must not stop the flow."""
    assert decode_hold(key, value) is None


def _holds(*records: Hold | RetentionLease, at_s: float = 0) -> Holds:
    holds = Holds()
    for record in records:
        holds.take(record, at_s)
    return holds


def _entries(
    *, policy: str, ms: str, size: str, source: ConfigSource = ConfigSource.TOPIC
) -> tuple[ConfigEntry, ...]:
    values = {"cleanup.policy": policy, "retention.ms": ms, "retention.bytes": size}
    return tuple(ConfigEntry(name=name, value=value, source=source) for name, value in values.items())
