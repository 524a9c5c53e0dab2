"""The report about a group's offset has its translation, whether it is committed on the target, and the reason if it is
not.
"""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.offsets.checkpoints import (
    DUE,
    HAS_MEMBERS,
    NO_CHECKPOINT,
    NOT_ASKED,
    NOT_KNOWN,
    OTHER_KIND,
    WAS_RESET,
    Group,
    GroupFacts,
    GroupSelection,
    Point,
    Writable,
    group_offsets,
    writable,
)
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffset
from mirrorflow_core.partitions import TopicPartition

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)


def report_of(
    *,
    translated_offset: int | None = 90,
    at_most: int | None = 90,
    checkpoint: int | None = 90,
    committed: int | None = None,
    **facts,
):
    translated = TranslatedOffset(
        upstream_offset=100, downstream_offset=translated_offset, at_most=at_most, source=ORDERS
    )
    points = {} if checkpoint is None else {COPY: Point(upstream_offset=100, downstream_offset=checkpoint)}
    values = {
        "group": "g",
        "translated": {COPY: translated},
        "points": points,
        "written_ms": lambda *_: 5,
        "target": {} if committed is None else {COPY: Committed(offset=committed)},
        "is_synchronised": True,
    }
    (report,) = group_offsets(GroupFacts(**(values | facts)))  # type: ignore[arg-type]
    return report


def test_a_synchronised_group_has_no_reason():
    report = report_of(committed=90)

    assert (report.topic, report.target_topic, report.source_offset) == ("orders", "A.orders", 100)
    assert (report.written, report.why, report.translation, report.again) == (True, None, "exact", (0, 0))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"translated_offset": None, "at_most": None}, NOT_KNOWN),
        ({"is_synchronised": False}, NOT_ASKED),
        ({"problem": "the ACL is missing"}, "the ACL is missing"),
        ({"writable": Writable.ACTIVE}, HAS_MEMBERS),
        ({"writable": Writable.OTHER_KIND}, OTHER_KIND),
        ({"checkpoint": None}, NO_CHECKPOINT),
        ({"points": {COPY: Point(upstream_offset=200, downstream_offset=190)}}, WAS_RESET),
        ({"ends": {COPY: 80}}, "the copy ends at 80"),
        ({}, DUE),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_an_offset_that_is_not_written_has_a_reason(facts, reason):
    report = report_of(**facts)

    assert (report.written, report.why) == (False, reason)


def test_a_target_group_that_is_ahead_counts_as_committed_with_a_note():
    report = report_of(committed=95)

    assert report.written
    assert "ahead, at 95" in str(report.why)
    assert report.again == (0, 0)


@pytest.mark.parametrize(
    ("metadata", "checkpoint_metadata", "committed", "at_most", "reason"),
    [
        ("m", "m", "m", 90, None),  # exact
        ("m", "m", "m", 95, "its metadata is that of source offset 100"),  # a bound
        ("newer", "m", "m", 95, "its metadata is that of source offset 98"),  # a bound from an older offset
        ("m", None, "m", 95, "its metadata is that of source offset 100"),  # no checkpoint was read
        ("m", "m", "", 90, "without the metadata of source offset 100"),
        ("", "", "", 95, None),
        ("m", "m", "the consumer's own", 95, None),
        ("", "m", "m", 95, "its metadata is that of source offset 98"),
    ],
)
def test_metadata_of_a_different_source_offset_is_reported(
    metadata: str, checkpoint_metadata: str | None, committed: str, at_most: int, reason: str | None
):
    upstream = 100 if checkpoint_metadata == metadata else 98
    report = report_of(
        translated={
            COPY: TranslatedOffset(
                upstream_offset=100, downstream_offset=90, at_most=at_most, source=ORDERS, metadata=metadata
            )
        },
        points={}
        if checkpoint_metadata is None
        else {COPY: Point(upstream_offset=upstream, downstream_offset=90, metadata=checkpoint_metadata)},
        target={COPY: Committed(offset=90, metadata=committed)},
    )

    assert (report.written, report.why) == (True, reason)


@pytest.mark.parametrize(
    ("values", "repeated"),
    [
        ({"committed": 60}, (30, 30)),
        ({"committed": 60, "at_most": 100}, (30, 40)),
        ({"committed": 60, "at_most": None}, (30, None)),
        ({"committed": 60, "at_most": None, "ends": {COPY: 140}}, (30, 80)),
        ({"checkpoint": 70}, (20, 20)),
        ({"checkpoint": None}, (0, None)),
        ({"translated_offset": None, "committed": 60}, (0, None)),
    ],
    ids=[
        "exact",
        "bound",
        "unknown end",
        "end of the copy",
        "from the checkpoint",
        "without a checkpoint",
        "unknown offset",
    ],
)
def test_a_failover_rereads_the_records_between_the_committed_and_the_translated_offset(values, repeated):
    assert report_of(**values).again == repeated


@pytest.mark.parametrize(
    ("protocol_type", "kind", "expected"),
    [
        ("consumer", "Classic", True),
        ("consumer", "Consumer", True),
        ("", "Classic", True),  # only offsets were committed, without a protocol
        ("consumer", "", True),  # a broker that reports no types
        ("connect", "Classic", False),
        ("share", "Share", False),
        ("streams", "Streams", False),
        ("consumer", "Streams", False),
    ],
)
def test_only_committed_offsets_of_consumers_are_progress(protocol_type: str, kind: str, expected: bool):  # noqa: FBT001
    """As in Java's listConsumerGroups, these are classic and consumer groups with the consumer protocol or no protocol."""
    assert expected == Group(name="g", protocol_type=protocol_type, type=kind).is_consumer_group


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, Writable.YES),
        (Group(name="g", protocol_type="consumer", state="Empty", type="Classic"), Writable.YES),
        (Group(name="g", protocol_type="consumer", state="Empty", type="Consumer"), Writable.YES),
        (Group(name="g", state="Dead"), Writable.YES),
        (Group(name="g", protocol_type="consumer", state="Stable", type="Classic"), Writable.ACTIVE),
        (
            Group(name="g", protocol_type="consumer", state="PreparingRebalance", type="Classic"),
            Writable.ACTIVE,
        ),
        (Group(name="g", protocol_type="consumer", state="Reconciling", type="Consumer"), Writable.ACTIVE),
        (Group(name="g", protocol_type="share", state="Empty", type="Share"), Writable.OTHER_KIND),
        (Group(name="g", protocol_type="connect", state="Empty", type="Classic"), Writable.OTHER_KIND),
    ],
)
def test_offsets_are_written_only_to_groups_without_members(group: Group | None, expected: Writable):
    """A group with members commits its own offsets."""
    assert expected == writable(group)


def test_a_group_that_cannot_be_translated_has_a_reason():
    """Other groups, for example of Connect workers, cause no warning; share groups have start offsets."""
    assert "streams" in str(Group(name="g", protocol_type="streams", type="Streams").why_not)
    assert not Group(name="g", protocol_type="share", type="Share").why_not
    assert not Group(name="g", protocol_type="connect", type="Classic").why_not


def test_exclude_takes_precedence_over_include_and_a_whole_name_must_match():
    """DefaultGroupFilter behaves the same."""
    selection = GroupSelection(include=("orders.*", "pay"), exclude=("orders-test",))

    assert [True, False, True, False, False] == [
        selection.selects(name) for name in ("orders-1", "orders-test", "pay", "payments", "other")
    ]


def test_an_empty_list_selects_nothing():
    """Java behaves the same."""
    assert not GroupSelection(include=(), exclude=()).selects("orders")


def test_a_custom_group_filter_replaces_the_lists():
    assert GroupSelection(include=(), exclude=(".*",), admits=lambda name: name == "x").selects("x")


def test_an_invalid_group_expression_is_an_error_of_its_setting():
    with pytest.raises(InvalidSettingError, match=r"^groups\.exclude: "):
        GroupSelection(include=(".*",), exclude=("(",))
