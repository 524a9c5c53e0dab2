"""Retention that is held: until when, by whom, and what is given back."""

from dataclasses import replace

from mirrorflow_core.retention_hold import (
    OVER_MS,
    RESTORED_MS,
    Hold,
    Holds,
    RetentionLease,
    changed,
    restoring,
    would_delete,
)
from mirrorflow_core.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.writer.identity import decode, encode

NOW = 1_000_000


def test_what_is_held_is_left_alone_until_the_lease_is_over():
    """Then it is to be given back once."""
    holds = _holds(
        Hold(holder="a", topic="t", before={"retention.ms": "5"}), RetentionLease(holder="a", until_ms=NOW)
    )

    assert holds.active(NOW - 1) == {"t"}
    assert holds.over(NOW - 1) == (frozenset(), frozenset())
    assert holds.active(NOW) == frozenset()
    assert holds.over(NOW) == (frozenset({"a"}), frozenset({"t"}))

    holds.take(RetentionLease(holder="a", until_ms=RESTORED_MS))

    assert holds.over(NOW) == (frozenset(), frozenset())
    assert holds.before("t") == {}


def test_who_comes_second_does_not_take_the_held_value_for_the_topics_own():
    """As long as one of them holds it, it is not restored."""
    holds = _holds(
        Hold(holder="a", topic="t", before={"retention.ms": None}),
        RetentionLease(holder="a", until_ms=OVER_MS),
        Hold(holder="b", topic="t", before={"retention.ms": "-1"}),
        RetentionLease(holder="b", until_ms=NOW + 1),
    )

    assert holds.before("t") == {"retention.ms": None}
    assert holds.active(NOW) == {"t"}
    assert holds.over(NOW) == (frozenset({"a"}), frozenset())


def test_a_hold_without_a_lease_was_never_begun():
    """The job was killed between the two, before it changed anything."""
    holds = _holds(Hold(holder="a", topic="t", before={"retention.ms": "5"}))

    assert holds.active(NOW) == frozenset()
    assert holds.over(NOW) == (frozenset(), frozenset())


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
        RetentionLease(holder="a", until_ms=NOW),
        Hold(holder="b", topic="t", before={"retention.ms": "5"}),
        RetentionLease(holder="b", until_ms=NOW),
        Hold(holder="b", topic="t", before={"retention.ms": "77"}, is_change=True),
    )

    assert holds.before("t") == {"retention.ms": "77", "retention.bytes": None}

    for holder in "ab":
        holds.take(RetentionLease(holder=holder, until_ms=RESTORED_MS))

    assert holds.before("t") == {}

    holds.take(Hold(holder="c", topic="t", before={"retention.ms": "6"}))
    holds.take(RetentionLease(holder="c", until_ms=NOW))

    assert holds.before("t") == {"retention.ms": "6"}


def test_setting_that_is_no_longer_ours_was_set_by_a_user():
    """Also where they took it away. What is as it was before is no news: some tools set it again every minute."""
    before, names = {"retention.ms": "100"}, ("retention.ms",)
    inherited = _entries(policy="delete", ms="604800000", size="-1", source=ConfigSource.DEFAULT)

    assert changed(_entries(policy="delete", ms="77", size="9"), names, before) == {"retention.ms": "77"}
    assert changed(inherited, names, before) == {"retention.ms": None}
    assert changed(_entries(policy="delete", ms="100", size="9"), names, before) == {}
    assert changed(_entries(policy="delete", ms="-1", size="9"), names, before) == {}


def test_records_read_as_they_were_written():
    """Among the decisions of the flow."""
    hold = Hold(holder="a", topic="t", before={"retention.ms": None})
    for record in (hold, replace(hold, is_change=True), RetentionLease(holder="a", until_ms=3)):
        assert decode(*encode(record)) == record


def _holds(*records: Hold | RetentionLease) -> Holds:
    holds = Holds()
    for record in records:
        holds.take(record)
    return holds


def _entries(
    *, policy: str, ms: str, size: str, source: ConfigSource = ConfigSource.TOPIC
) -> tuple[ConfigEntry, ...]:
    values = {"cleanup.policy": policy, "retention.ms": ms, "retention.bytes": size}
    return tuple(ConfigEntry(name=name, value=value, source=source) for name, value in values.items())
