"""Records of the identity topic: the first record of a key binds, whatever comes later."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.identity import (
    Anchor,
    Decisions,
    Identity,
    decode,
    encode,
    identity_topic,
    transactional_id,
)

TEXTS = st.text(max_size=12)
OFFSETS = st.integers(-1, 2**62)
IDENTITIES = st.builds(
    Identity,
    generation=st.integers(0, 3),
    producer_id=OFFSETS,
    producer_epoch=st.integers(0, 32767),
    transactional_id=TEXTS,
    source_cluster_id=TEXTS,
    target_cluster_id=TEXTS,
    policy=TEXTS,
    flow=TEXTS,
    stream=TEXTS,
    why=TEXTS,
)
ANCHORS = st.builds(
    Anchor,
    generation=st.integers(0, 2),
    topic=st.sampled_from(["a", "ü.b"]),
    partition=st.integers(0, 2),
    step=st.integers(0, 2),
    ordinal=OFFSETS,
    source_offset=OFFSETS,
    target_offset=OFFSETS,
    source_topic_id=TEXTS,
    target_topic_id=TEXTS,
    why=TEXTS,
)
PROPOSALS = st.one_of(IDENTITIES, ANCHORS)
ANCHOR = Anchor(
    generation=1,
    topic="a",
    partition=0,
    step=0,
    ordinal=0,
    source_offset=5,
    target_offset=7,
    source_topic_id="s",
    target_topic_id="t",
    why="begin",
)


@given(PROPOSALS)
def test_a_proposal_is_read_as_it_was_written(proposal):
    """Key and value together hold every field once."""
    key, value = encode(proposal)

    assert proposal == decode(key, value)
    assert not set(json.loads(key)) & set(json.loads(value))


@given(PROPOSALS, PROPOSALS)
def test_two_proposals_have_one_key_only_if_they_are_about_the_same(one, other):
    """A generation, or a step of one partition in a generation."""

    def subject(of):
        if isinstance(of, Identity):
            return (of.generation,)
        return (of.generation, of.topic, of.partition, of.step)

    assert (subject(one) == subject(other)) == (encode(one)[0] == encode(other)[0])


def test_what_a_later_version_adds_is_passed_over():
    """Unknown fields and unknown kinds, so that versions can be mixed while they are rolled."""
    key, value = encode(ANCHOR)
    more = json.dumps(json.loads(value) | {"colour": "red"}).encode()

    assert ANCHOR == decode(key, more)
    assert decode(b'{"type":"colour"}', value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"[]", b"{}"),
        (b'{"type":"anchor"}', b"{}"),
        (b'{"type":"identity"}', b"[1]"),
        (b"\xff", b"{}"),
    ],
)
def test_what_is_no_proposal_is_passed_over(key, value):
    """Anybody may write into a topic; one foreign record must not stop the flow."""
    assert decode(key, value) is None


def read(proposals):
    decisions = Decisions()
    for proposal in proposals:
        decisions.read(proposal, 0)
    return decisions


@given(st.lists(PROPOSALS, max_size=12), st.lists(PROPOSALS, max_size=12))
def test_what_is_decided_stays_decided(before, after):
    """The first of each key wins; later proposals change no generation and no step that was read."""
    early, late = read(before), read(before + after)

    for proposal in before:
        if isinstance(proposal, Identity):
            assert early.generation(proposal.generation) == late.generation(proposal.generation)
    for anchor in before:
        if not isinstance(anchor, Anchor):
            continue
        key = encode(anchor)[0]
        first = next(p for p in before if encode(p)[0] == key)
        where = TopicPartition(anchor.topic, anchor.partition)
        found = late.anchor(where, anchor.generation)
        assert found is not None
        assert found.step > anchor.step or found == (first if found.step == anchor.step else found)
        assert found in before + after


@given(st.lists(PROPOSALS, max_size=12))
def test_the_newest_generation_and_the_newest_step_hold(proposals):
    """By number, not by the order in which they came."""
    decisions = read(proposals)

    numbers = [p.generation for p in proposals if isinstance(p, Identity)]
    assert max(numbers, default=None) == (decisions.identity.generation if decisions.identity else None)
    for anchor in proposals:
        if isinstance(anchor, Anchor):
            steps = [
                p.step
                for p in proposals
                if isinstance(p, Anchor)
                and (p.topic, p.partition, p.generation)
                == (anchor.topic, anchor.partition, anchor.generation)
            ]
            found = decisions.anchor(TopicPartition(anchor.topic, anchor.partition), anchor.generation)
            assert found is not None
            assert max(steps) == found.step


def test_an_anchor_of_another_generation_is_none():
    """The ordinals of two generations mean different records."""
    decisions = read([ANCHOR])

    assert decisions.anchor(TopicPartition("a", 0), 2) is None
    assert decisions.anchor(TopicPartition("a", 1), 1) is None
    assert (TopicPartition("a", 0),) == decisions.partitions()


def test_an_anchor_is_the_state_before_its_first_record():
    """Nothing is delivered yet: the offsets before, the ordinal before."""
    pair = ANCHOR.as_pair()

    assert (4, -1, 6) == (pair.source_offset, pair.ordinal, pair.target_offset)


def test_names_are_what_the_documents_say():
    """An operator's ACLs name them."""
    assert ("mm2-identity.east.internal", "mirrorflow.east") == (
        identity_topic("east"),
        transactional_id("east"),
    )
