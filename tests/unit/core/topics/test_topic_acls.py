"""ACLs of copies: MM2's mapping, prefixes where that is safe, differences only, and nothing removed that is not ours."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.replication_policy import DefaultPolicy, remote_prefix
from mirrorflow_core.settings import PolicyKind, PolicySettings
from mirrorflow_core.topics.topic_acls import (
    TOPIC,
    AclBinding,
    AclPlan,
    AclRules,
    Operation,
    PatternType,
    Permission,
    decode_mark,
    encode_mark,
    first_acls,
    plan_acls,
    target_acl,
)
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def acl(
    name: str,
    operation: int = Operation.READ,
    permission: int = ALLOW,
    pattern: int = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=int(pattern),
        principal=principal,
        host=host,
        operation=int(operation),
        permission_type=int(permission),
    )


def rules(*include: str, kind: PolicyKind = PolicyKind.DEFAULT, separator: str = ".") -> AclRules:
    """The naming of a flow A -> B that copies *include*; a custom policy appends the alias to the name."""
    settings = PolicySettings(kind=kind, separator=separator, source_alias="A")
    selection = TopicSelection(
        include=include or (".*",),
        exclude=(),
        naming=TopicTransforms(DefaultPolicy(separator, separator), "A"),
        target_alias="B",
        heartbeats=False,
    )
    targets = {
        PolicyKind.DEFAULT: lambda topic: f"A{separator}{topic}",
        PolicyKind.IDENTITY: lambda topic: topic,
        PolicyKind.CUSTOM: lambda topic: f"{topic}{separator}A",
    }
    return AclRules(
        selects=selection.selects,
        target_topic=targets[kind],
        target_prefix=lambda prefix: remote_prefix(settings, "A", prefix),
        own_names=kind is PolicyKind.DEFAULT,
    )


def planned(
    source: list[AclBinding],
    target: list[AclBinding] | None = None,
    ours: list[AclBinding] | None = None,
    topics: tuple[str, ...] = ("orders",),
    of: AclRules | None = None,
) -> AclPlan:
    return plan_acls(source=source, target=target or [], ours=ours or [], topics=topics, rules=of or rules())


def test_acls_of_a_topic_follow_under_the_name_of_its_copy():
    """As MirrorSourceConnector: READ and the like as they are, ALLOW ALL as READ, DENY as it is, ALLOW WRITE never."""
    source = [
        acl("orders", Operation.WRITE),
        acl("orders", Operation.ALL, principal="User:admin", host="10.0.0.1"),
        acl("orders", Operation.DESCRIBE_CONFIGS),
        acl("orders", Operation.WRITE, DENY),
        acl("orders", Operation.ALL, DENY, principal="User:mallory"),
    ]

    assert set(planned(source).create) == {
        acl("A.orders", Operation.READ, principal="User:admin", host="10.0.0.1"),
        acl("A.orders", Operation.DESCRIBE_CONFIGS),
        acl("A.orders", Operation.WRITE, DENY),
        acl("A.orders", Operation.ALL, DENY, principal="User:mallory"),
    }


def test_only_acls_of_topics_of_the_flow_follow():
    """By name, as in MM2, whether the topic exists yet or not; groups, and topics that are not selected, do not."""
    group = replace(acl("orders"), resource_type=3)
    source = [group, acl("payments"), acl("B.orders"), acl("mm2-offsets.X.internal"), acl("orders-later")]

    assert planned(source, of=rules("orders.*", "B.*", "mm2.*")).create == (acl("A.orders-later"),)


@pytest.mark.parametrize(
    ("kind", "name", "pattern", "copy"),
    [
        (PolicyKind.DEFAULT, "ord", PREFIXED, acl("A.ord", pattern=PREFIXED)),
        (PolicyKind.DEFAULT, "*", LITERAL, acl("A.", pattern=PREFIXED)),
        (PolicyKind.IDENTITY, "ord", PREFIXED, acl("ord", pattern=PREFIXED)),
        (PolicyKind.IDENTITY, "*", LITERAL, acl("*")),
    ],
)
def test_prefixes_follow_where_the_naming_keeps_them(
    kind: PolicyKind, name: str, pattern: int, copy: AclBinding
):
    """MM2 copies no prefix, and makes of `*` a topic that cannot exist."""
    assert planned([acl(name, pattern=pattern)], of=rules(kind=kind)).create == (copy,)


def test_a_policy_of_the_user_s_own_keeps_no_prefix():
    """Only names follow; what cannot follow is reported only if it concerns a topic of the flow."""
    source = [acl("orders"), acl("ord", pattern=PREFIXED), acl("pay", pattern=PREFIXED), acl("*")]

    plan = planned(source, of=rules(kind=PolicyKind.CUSTOM))

    assert plan.create == (acl("orders.A"),)
    assert plan.left_out == (
        "Allow Read on topic * for User:alice is not copied: the naming does not keep prefixes.",
        "Allow Read on topics that begin with ord for User:alice is not copied: the naming does not keep prefixes.",
    )


def test_where_names_are_unchanged_no_prefix_reaches_beyond_the_flow():
    """It would open topics of the target that are no copies; with the alias before them nothing else is there."""
    source = [acl("o", pattern=PREFIXED), acl("orders-", pattern=PREFIXED), acl("*")]
    topics = ("orders-eu",)

    plan = planned(source, topics=topics, of=rules("orders.*", kind=PolicyKind.IDENTITY))
    behind_alias = planned(source, topics=topics, of=rules("orders.*"))

    assert plan.create == (acl("orders-", pattern=PREFIXED),)
    assert len(plan.left_out) == 2
    assert all("it would reach topics that are no copies" in sentence for sentence in plan.left_out)
    assert len(behind_alias.create) == 3
    assert behind_alias.left_out == ()


def test_what_is_there_is_not_written_again():
    """A second pass over unchanged clusters plans nothing, whatever user created the ACLs."""
    source = [acl("orders"), acl("orders", Operation.ALL, DENY)]
    created = list(planned(source).create)

    assert planned(source, created, created) == AclPlan()
    assert planned(source, created) == AclPlan()


def test_only_what_the_flow_created_is_removed():
    """The source's ACL is gone: the copy goes, a foreign one that reads the same does not, nor any other."""
    mine, theirs = acl("A.orders"), acl("A.orders", principal="User:bob")
    left = acl("other")

    assert planned([left], [mine, theirs], [mine]).remove == (mine,)
    assert planned([left], [mine, theirs], []).remove == ()


def test_a_copy_stays_while_anything_on_the_source_stands_for_it():
    """ALL and READ have one copy; a topic that is hidden or no longer selected keeps what its copy was given."""
    mine = acl("A.orders")

    assert planned([acl("orders", Operation.ALL)], [mine], [mine]) == AclPlan()
    assert planned([acl("orders")], [mine], [mine], topics=(), of=rules("payments")) == AclPlan()


def test_a_source_without_any_acl_takes_nothing_away():
    """An authorizer that has lost its data must not open, or close, every copy."""
    mine = acl("A.orders")

    plan = planned([], [mine], [mine])

    assert plan.remove == ()
    assert plan.left_out[0].startswith("1 ACLs of the copies are kept")


def test_acl_removed_by_a_user_is_forgotten_unless_it_is_needed():
    """Created again by hand later, it is theirs; wanted, it is created again and stays ours."""
    mine = acl("A.orders")

    assert planned([acl("orders")], [], [mine]) == AclPlan(create=(mine,))
    assert planned([acl("other")], [], [mine]).forget == (mine,)


def test_marks_survive_their_bytes_and_bind_to_the_naming():
    """Under another naming the copies are others; records of any other kind are passed over."""
    one = acl("A.orders", principal='User:CN="a",OU=b')

    key, value = encode_mark(one, naming="default .", ours=True)

    assert decode_mark(key, value, naming="default .") == (one, True)
    assert decode_mark(*encode_mark(one, naming="default .", ours=False), naming="default .") == (one, False)
    assert decode_mark(key, value, naming="identity .") is None
    for other in (b"", b"[]", b'{"type":"anchor"}', b'{"type":"acl","naming":"default ."}'):
        assert decode_mark(other, b"{}", naming="default .") is None


def allows(acls: list[AclBinding], topic: str) -> bool:
    """Whether Alice may read *topic*, as StandardAuthorizer decides."""

    def matches(one: AclBinding) -> bool:
        if one.pattern_type == PREFIXED:
            return topic.startswith(one.resource_name)
        return one.resource_name in {topic, "*"}

    found = {one.permission_type for one in acls if matches(one)}
    return DENY not in found and ALLOW in found


names = st.text(alphabet="ab.", min_size=1, max_size=4).filter(
    lambda name: not name.startswith(".") and "A." not in name
)
source_acls = st.lists(
    st.builds(
        acl,
        st.one_of(names, st.just("*")),
        st.sampled_from([Operation.READ, Operation.ALL]),
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([LITERAL, PREFIXED]),
    ),
    max_size=6,
)


@given(
    source=source_acls, topics=st.sets(names, min_size=1, max_size=4), separator=st.sampled_from([".", "-"])
)
def test_exactly_the_readers_of_a_topic_may_read_its_copy(
    source: list[AclBinding], topics: set[str], separator: str
):
    """Under the alias, whatever patterns say it: exactly the readers of the topic."""
    of = rules(separator=separator)

    plan = planned(source, topics=tuple(topics), of=of)

    for topic in topics:
        assert allows(list(plan.create), of.target_topic(topic)) == allows(source, topic)
    assert not allows(list(plan.create), "orders-of-the-target")


@given(source=source_acls, before=source_acls, foreign=source_acls, topics=st.sets(names, max_size=4))
def test_a_pass_leads_where_the_next_has_nothing_to_do_and_touches_nothing_foreign(
    source: list[AclBinding], before: list[AclBinding], foreign: list[AclBinding], topics: set[str]
):
    """From whatever the flow had created and others have: foreign ACLs stay, and a second pass writes nothing."""
    of = rules()
    ours = {copy for one in before if (copy := target_acl(one, of)) is not None} - set(foreign)
    target = ours | set(foreign)

    plan = planned(source, list(target), list(ours), tuple(topics), of)
    after = (target | set(plan.create)) - set(plan.remove)
    now_ours = (ours | set(plan.create)) - set(plan.remove) - set(plan.forget)
    again = planned(source, list(after), list(now_ours), tuple(topics), of)

    assert set(foreign) <= after
    assert (again.create, again.remove, again.forget) == ((), (), ())


def test_the_first_acls_of_topics_are_those_that_no_other_acl_names_yet():
    """A prefix or `*` on the target names topics, too; an ACL of one topic says nothing about its prefix."""
    created = (acl("A.x"), acl("A.y"), acl("A.", pattern=PREFIXED))

    assert first_acls(created, []) == created
    assert first_acls(created, [acl("A.x", principal="User:bob")]) == (created[1], created[2])
    assert first_acls(created, [acl("A.", pattern=PREFIXED, principal="User:bob")]) == ()
    assert first_acls(created, [acl("A.x", pattern=PREFIXED)]) == (created[1], created[2])
    assert first_acls(created, [acl("*", principal="User:bob")]) == ()
    assert first_acls([acl("*")], [acl("A.x")]) == (acl("*"),)
