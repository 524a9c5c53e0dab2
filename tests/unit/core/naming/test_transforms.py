"""What the built-in transformations make of topics and headers."""

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.naming.replication_policy import DefaultPolicy, IdentityPolicy
from mirrorflow_core.naming.transforms import TopicTransforms, Transforms
from mirrorflow_core.settings import TransformKind, TransformSettings


def renaming(regex: str, replacement: str) -> TransformSettings:
    return TransformSettings(
        key="transforms.r", kind=TransformKind.RENAME, regex=regex, replacement=replacement
    )


def naming(*stages: TransformSettings, in_base64: bool = False) -> TopicTransforms:
    return TopicTransforms(DefaultPolicy(), "A", Transforms(stages, headers_in_base64=in_base64))


@pytest.mark.parametrize("replacement", ["$2", "$", "x\\", "${no}", "${1}"])
def test_replacement_that_java_refuses_is_refused_before_anything_is_copied(replacement: str):
    """Java's task fails at its first record."""
    with pytest.raises(InvalidSettingError, match=r"^transforms\.r\.replacement: "):
        naming(renaming("(.*)", replacement))


def test_only_names_that_match_as_a_whole_are_replaced_and_the_next_stage_sees_the_new_one():
    """As RegexRouter's `matches` and `replaceFirst`."""
    chain = naming(renaming(r"A\.(.*)", "$1"), renaming("orders", "sales"), renaming("sale", "never"))

    assert [chain.target_topic(topic) for topic in ("orders", "orders2")] == ["sales", "orders2"]


def test_predicates_see_the_name_of_their_place_in_the_chain():
    """The same expression means another set of topics behind a renaming."""
    drop = TransformSettings(
        key="transforms.d", kind=TransformKind.DROP, predicate=r"A\..*", predicate_key="p", negate=True
    )
    rename = renaming(r"A\.(x)", "$1")

    assert naming(rename, drop).route("x").dropped_by == "transforms.d"
    assert naming(drop, rename).route("x").dropped_by == ""
    assert naming(rename, drop).route("y").dropped_by == ""


def test_headers_are_put_in_and_taken_out_in_order():
    """A dropped name may come back behind its removal; what was there stays in its order."""
    insert = TransformSettings(key="i", kind=TransformKind.INSERT_HEADER, header="a", value=b"new")
    null = TransformSettings(key="n", kind=TransformKind.INSERT_HEADER, header="n")
    drop = TransformSettings(key="d", kind=TransformKind.DROP_HEADERS, headers=("a", "b"))
    headers = ((b"a", b"1"), (b"c", None), (b"a", b"2"), (b"d", b"\xff"))

    assert naming(insert, drop, insert, null).header_edits("t").edited(headers) == (
        (b"c", None), (b"d", b"\xff"), (b"a", b"new"), (b"n", None),
    )  # fmt: skip


def test_base64_is_of_the_source_s_values_alone():
    """SimpleHeaderConverter writes bytes in base64, and a literal as text."""
    insert = TransformSettings(key="i", kind=TransformKind.INSERT_HEADER, header="a", value=b"text")

    edits = naming(insert, in_base64=True).header_edits("t")

    assert edits.edited(((b"x", b"\x00\xff"), (b"n", None))) == (
        (b"x", b"AP8="), (b"n", None), (b"a", b"text"),
    )  # fmt: skip


def test_heartbeats_keep_their_name_and_internal_topics_are_never_a_copy():
    """Hops are read from the names of heartbeats; a copy in a topic of positions would destroy both."""
    strip = naming(renaming(r"A\.(.*)", "$1"), renaming("bad", "mm2-offsets.A.internal"))

    assert strip.target_topic("heartbeats") == "A.heartbeats"
    assert strip.obstacle("heartbeats") == ""
    assert "mm2-offsets.A.internal" in strip.obstacle("bad")
    assert strip.obstacle("good") == ""


def test_names_of_identity_are_renamed_too():
    """The transformations stand behind whatever policy there is."""
    identity = IdentityPolicy("A")

    assert (
        TopicTransforms(identity, "A", Transforms([renaming("(.*)", "copy-$1")])).target_topic("t")
        == "copy-t"
    )
