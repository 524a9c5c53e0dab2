"""What is said of a group's offset: the place, whether the target's group has it, and if not the first reason that holds."""

import pytest

from mirrorflow_core.offsets.checkpoints import Point, Standing
from mirrorflow_core.offsets.group_offsets import (
    DUE,
    HAS_MEMBERS,
    NO_CHECKPOINT,
    NOT_ASKED,
    NOT_KNOWN,
    OTHER_KIND,
    SET_BACK,
    GroupFacts,
    group_offsets,
)
from mirrorflow_core.offsets.groups import Writable
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.groups import Committed

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)


def said(
    *,
    place: int | None = 90,
    at_most: int | None = 90,
    point: int | None = 90,
    own: int | None = None,
    **facts,
):
    standing = Standing(upstream_offset=100, downstream_offset=place, at_most=at_most, source=ORDERS)
    points = {} if point is None else {COPY: Point(upstream_offset=100, downstream_offset=point)}
    values = {
        "group": "g",
        "standings": {COPY: standing},
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
        ({"points": {COPY: Point(upstream_offset=200, downstream_offset=190)}}, SET_BACK),
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
