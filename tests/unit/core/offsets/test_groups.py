"""Which groups are looked at and which may be written to, for every kind and state that brokers tell of."""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.offsets.groups import Group, GroupSelection, Writable, writable


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
