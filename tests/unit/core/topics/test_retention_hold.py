"""Retention that is held: until when, by whom, and what is given back."""

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

NOW_MS = 1_800_000_000_000  # by the clock of the holder's host


@pytest.mark.parametrize("clock_error_ms", [-3_600_000, 0, 3_600_000])
def test_what_is_held_is_left_alone_until_its_lease_is_not_renewed(clock_error_ms: int):
    """Whatever the clocks of other hosts show. Then it is to be given back once."""
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


def test_hold_ends_at_once_when_its_holder_gives_it_up():
    hold = Hold(holder="a", topic="t", before={"retention.ms": "5"})
    holds = _holds(hold, RetentionLease(holder="a", until_ms=NOW_MS), at_s=100)

    holds.take(RetentionLease(holder="a", until_ms=OVER_MS), 101)

    assert holds.active(101) == frozenset()
    assert holds.over(101) == (frozenset({"a"}), frozenset({"t"}))
    assert holds.holders == {"a"}


def test_who_comes_second_does_not_take_the_held_value_for_the_topics_own():
    """As long as one of them holds it, it is not restored."""
    holds = _holds(
        Hold(holder="a", topic="t", before={"retention.ms": None}),
        RetentionLease(holder="a", until_ms=OVER_MS),
        Hold(holder="b", topic="t", before={"retention.ms": "-1"}),
        RetentionLease(holder="b", until_ms=NOW_MS),
    )

    assert holds.before("t") == {"retention.ms": None}
    assert holds.active(0) == {"t"}
    assert holds.over(0) == (frozenset({"a"}), frozenset())


def test_a_hold_without_a_lease_was_never_begun():
    """The job was killed between the two, before it changed anything."""
    holds = _holds(Hold(holder="a", topic="t", before={"retention.ms": "5"}))

    assert holds.active(0) == frozenset()
    assert holds.over(0) == (frozenset(), frozenset())


def test_only_what_would_delete_is_held():
    """By age where there are old records, by size where the partition is large; a compacted topic keeps all the same."""
    entries = _entries(policy="delete", ms="100", size="1000")

    assert would_delete(entries, has_old=False, bytes_max=10) == {}
    assert would_delete(entries, has_old=True, bytes_max=10) == {"retention.ms": "100"}
    assert would_delete(entries, has_old=False, bytes_max=900) == {"retention.bytes": "1000"}
    assert would_delete(_entries(policy="compact", ms="100", size="-1"), has_old=True, bytes_max=1) == {}
    assert would_delete(_entries(policy="delete", ms="-1", size="-1"), has_old=True, bytes_max=10**12) == {}


def test_an_inherited_value_is_given_back_by_removing_ours():
    """As a topic that had none of its own."""
    inherited = _entries(policy="delete", ms="100", size="-1", source=ConfigSource.DEFAULT)
    before = would_delete(inherited, has_old=True, bytes_max=1)

    changes = restoring(_entries(policy="delete", ms="-1", size="-1"), before)

    assert changes == (ConfigChange(name="retention.ms", value=None),)


def test_setting_changed_by_a_user_meanwhile_is_kept():
    """The user's change is later than ours."""
    assert restoring(_entries(policy="delete", ms="77", size="-1"), {"retention.ms": "100"}) == ()


def test_value_set_during_the_hold_is_restored():
    """Either of two jobs may notice it; a hold that begins after both ignores it."""
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


def test_setting_that_is_no_longer_ours_was_set_by_a_user():
    """Also where they took it away. What is as it was before is no news: some tools set it again every minute."""
    before, names = {"retention.ms": "100"}, ("retention.ms",)
    inherited = _entries(policy="delete", ms="604800000", size="-1", source=ConfigSource.DEFAULT)

    assert changed(_entries(policy="delete", ms="77", size="9"), names, before) == {"retention.ms": "77"}
    assert changed(inherited, names, before) == {"retention.ms": None}
    assert changed(_entries(policy="delete", ms="100", size="9"), names, before) == {}
    assert changed(_entries(policy="delete", ms="-1", size="9"), names, before) == {}


def test_identity_topic_has_the_name_that_acls_grant():
    assert identity_topic("east") == "mm2-identity.east.internal"


def test_records_read_as_they_were_written():
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
def test_records_that_are_no_hold_are_ignored(key: bytes, value: bytes):
    """Anybody may write into a topic; one foreign record must not stop the flow."""
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
