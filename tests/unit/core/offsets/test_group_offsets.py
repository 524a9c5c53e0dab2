"""What is said of a group's offset: the place, whether the target's group has it, and if not the first reason that holds."""

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


def said(
    *,
    place: int | None = 90,
    at_most: int | None = 90,
    point: int | None = 90,
    own: int | None = None,
    **facts,
):
    translated = TranslatedOffset(
        upstream_offset=100, downstream_offset=place, at_most=at_most, source=ORDERS
    )
    points = {} if point is None else {COPY: Point(upstream_offset=100, downstream_offset=point)}
    values = {
        "group": "g",
        "translated": {COPY: translated},
        "points": points,
        "written_ms": lambda *_: 5,
        "target": {} if own is None else {COPY: Committed(offset=own)},
        "is_synchronised": True,
    }
    (one,) = group_offsets(GroupFacts(**(values | facts)))  # type: ignore[arg-type]
    return one


def test_a_group_that_was_moved_has_nothing_more_to_be_said():
    one = said(own=90)

    assert (one.topic, one.target_topic, one.source_offset) == ("orders", "A.orders", 100)
    assert (one.written, one.why, one.translation, one.again) == (True, "", "exact", (0, 0))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"place": None, "at_most": None}, NOT_KNOWN),
        ({"is_synchronised": False}, NOT_ASKED),
        ({"problem": "the ACL is missing"}, "the ACL is missing"),
        ({"writable": Writable.ACTIVE}, HAS_MEMBERS),
        ({"writable": Writable.OTHER_KIND}, OTHER_KIND),
        ({"point": None}, NO_CHECKPOINT),
        ({"points": {COPY: Point(upstream_offset=200, downstream_offset=190)}}, WAS_RESET),
        ({"ends": {COPY: 80}}, "the copy ends at 80"),
        ({}, DUE),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_what_is_not_written_says_why(facts, why):
    one = said(**facts)

    assert (one.written, one.why) == (False, why)


def test_a_group_that_is_ahead_is_written_and_says_so():
    one = said(own=95)

    assert one.written
    assert "ahead, at 95" in one.why
    assert one.again == (0, 0)


@pytest.mark.parametrize(
    ("metadata", "of_point", "own", "at_most", "why"),
    [
        ("m", "m", "m", 90, ""),  # exact
        ("m", "m", "m", 95, "its metadata is that of source offset 100"),  # a bound
        ("newer", "m", "m", 95, "its metadata is that of source offset 98"),  # the bound of an older offset
        ("m", None, "m", 95, "its metadata is that of source offset 100"),  # no checkpoint was read
        ("m", "m", "", 90, "without the metadata of source offset 100"),
        ("", "", "", 95, ""),
        ("m", "m", "the consumer's own", 95, ""),
        ("", "m", "m", 95, "its metadata is that of source offset 98"),
    ],
)
def test_metadata_of_another_source_offset_is_named(
    metadata: str, of_point: str | None, own: str, at_most: int, why: str
):
    upstream = 100 if of_point == metadata else 98
    one = said(
        translated={
            COPY: TranslatedOffset(
                upstream_offset=100, downstream_offset=90, at_most=at_most, source=ORDERS, metadata=metadata
            )
        },
        points={}
        if of_point is None
        else {COPY: Point(upstream_offset=upstream, downstream_offset=90, metadata=of_point)},
        target={COPY: Committed(offset=90, metadata=own)},
    )

    assert (one.written, one.why) == (True, why)


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ({"own": 60}, (30, 30)),
        ({"own": 60, "at_most": 100}, (30, 40)),
        ({"own": 60, "at_most": None}, (30, None)),
        ({"own": 60, "at_most": None, "ends": {COPY: 140}}, (30, 80)),
        ({"point": 70}, (20, 20)),
        ({"point": None}, (0, None)),
        ({"place": None, "own": 60}, (0, None)),
    ],
    ids=[
        "exact",
        "bound",
        "no end known",
        "end of the copy",
        "by the checkpoint",
        "by nothing",
        "place not known",
    ],
)
def test_a_failover_reads_again_what_lies_between_where_it_begins_and_its_place(given, again):
    assert said(**given).again == again


@pytest.mark.parametrize(
    ("protocol_type", "kind", "expected"),
    [
        ("consumer", "Classic", True),
        ("consumer", "Consumer", True),
        ("", "Classic", True),  # only offsets were committed
        ("consumer", "", True),  # a broker that reports no types
        ("connect", "Classic", False),
        ("share", "Share", False),
        ("streams", "Streams", False),
        ("consumer", "Streams", False),
    ],
)
def test_only_committed_offsets_of_consumers_are_progress(protocol_type: str, kind: str, expected: bool):  # noqa: FBT001
    """Java's listConsumerGroups: classic and consumer groups, by consumers' protocol or none."""
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
def test_offsets_are_given_to_groups_without_members_only(group: Group | None, expected: Writable):
    """Idle or unknown; a group with members says itself where it stands."""
    assert expected == writable(group)


@pytest.mark.parametrize(("kind", "word"), [("Share", "share"), ("Streams", "streams")])
def test_a_group_that_cannot_be_translated_says_why(kind: str, word: str):
    """Other groups, for example of Connect's workers, cause no warning."""
    assert word in Group(name="g", protocol_type=word, type=kind).why_not
    assert not Group(name="g", protocol_type="connect", type="Classic").why_not


def test_exclude_wins_over_include_and_a_whole_name_must_match():
    """DefaultGroupFilter."""
    selection = GroupSelection(include=("orders.*", "pay"), exclude=("orders-test",))

    assert [True, False, True, False, False] == [
        selection.selects(name) for name in ("orders-1", "orders-test", "pay", "payments", "other")
    ]


def test_an_empty_list_selects_nothing():
    """As Java's."""
    assert not GroupSelection(include=(), exclude=()).selects("orders")


def test_a_filter_of_the_users_own_decides_alone():
    """Lists are not asked beside it."""
    assert GroupSelection(include=(), exclude=(".*",), admits=lambda name: name == "x").selects("x")


def test_a_wrong_expression_names_its_setting():
    """Before anything starts."""
    with pytest.raises(InvalidSettingError, match=r"^groups\.exclude: "):
        GroupSelection(include=(".*",), exclude=("(",))
