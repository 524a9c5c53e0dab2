"""ACL sync follows MM2's mapping, copies safe prefixes, and writes or removes only ACLs of the flow."""

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
    """Returns the ACL rules of a flow A -> B that copies *include*. A custom policy appends the alias to the name."""
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


def plan_for(
    source: list[AclBinding],
    target: list[AclBinding] | None = None,
    owned: list[AclBinding] | None = None,
    topics: tuple[str, ...] = ("orders",),
    acl_rules: AclRules | None = None,
) -> AclPlan:
    return plan_acls(
        source=source, target=target or [], owned=owned or [], topics=topics, rules=acl_rules or rules()
    )


def test_acls_of_a_topic_are_copied_to_its_remote_topic():
    """As in MirrorSourceConnector: DENY stays, ALLOW ALL becomes READ, ALLOW WRITE is never copied."""
    source = [
        acl("orders", Operation.WRITE),
        acl("orders", Operation.ALL, principal="User:admin", host="10.0.0.1"),
        acl("orders", Operation.DESCRIBE_CONFIGS),
        acl("orders", Operation.WRITE, DENY),
        acl("orders", Operation.ALL, DENY, principal="User:mallory"),
    ]

    assert set(plan_for(source).create) == {
        acl("A.orders", Operation.READ, principal="User:admin", host="10.0.0.1"),
        acl("A.orders", Operation.DESCRIBE_CONFIGS),
        acl("A.orders", Operation.WRITE, DENY),
        acl("A.orders", Operation.ALL, DENY, principal="User:mallory"),
    }


def test_only_acls_of_selected_topics_are_copied():
    """As in MM2, only the name decides, even for a topic that does not exist. ACLs of groups are not copied."""
    group = replace(acl("orders"), resource_type=3)
    source = [group, acl("payments"), acl("B.orders"), acl("mm2-offsets.X.internal"), acl("orders-later")]

    assert plan_for(source, acl_rules=rules("orders.*", "B.*", "mm2.*")).create == (acl("A.orders-later"),)


@pytest.mark.parametrize(
    ("kind", "name", "pattern", "expected"),
    [
        (PolicyKind.DEFAULT, "ord", PREFIXED, acl("A.ord", pattern=PREFIXED)),
        (PolicyKind.DEFAULT, "*", LITERAL, acl("A.", pattern=PREFIXED)),
        (PolicyKind.IDENTITY, "ord", PREFIXED, acl("ord", pattern=PREFIXED)),
        (PolicyKind.IDENTITY, "*", LITERAL, acl("*")),
    ],
)
def test_prefixes_are_copied_if_the_naming_keeps_them(
    kind: PolicyKind, name: str, pattern: int, expected: AclBinding
):
    """MM2 copies no prefixed ACL, and turns `*` into a topic name that cannot exist."""
    assert plan_for([acl(name, pattern=pattern)], acl_rules=rules(kind=kind)).create == (expected,)


def test_no_prefixed_acl_is_copied_with_a_custom_policy():
    """Only literal ACLs are copied. Other ACLs are reported if they concern a topic of the flow."""
    source = [acl("orders"), acl("ord", pattern=PREFIXED), acl("pay", pattern=PREFIXED), acl("*")]

    plan = plan_for(source, acl_rules=rules(kind=PolicyKind.CUSTOM))

    assert plan.create == (acl("orders.A"),)
    assert plan.left_out == (
        "Allow Read on topic * for User:alice is not copied: the naming does not keep prefixes.",
        "Allow Read on topics that begin with ord for User:alice is not copied: the naming does not keep prefixes.",
    )


def test_with_unchanged_names_no_prefix_covers_topics_outside_the_flow():
    """Such a prefix would grant access to other target topics. If the alias is a prefix, there are no such topics."""
    source = [acl("o", pattern=PREFIXED), acl("orders-", pattern=PREFIXED), acl("*")]
    topics = ("orders-eu",)

    plan = plan_for(source, topics=topics, acl_rules=rules("orders.*", kind=PolicyKind.IDENTITY))
    plan_with_alias = plan_for(source, topics=topics, acl_rules=rules("orders.*"))

    assert plan.create == (acl("orders-", pattern=PREFIXED),)
    assert len(plan.left_out) == 2
    assert all("it would reach topics that are no copies" in message for message in plan.left_out)
    assert len(plan_with_alias.create) == 3
    assert plan_with_alias.left_out == ()


def test_existing_acls_are_not_written_again():
    """A second pass over unchanged clusters plans nothing, even if the user created the ACLs."""
    source = [acl("orders"), acl("orders", Operation.ALL, DENY)]
    created = list(plan_for(source).create)

    assert plan_for(source, created, created) == AclPlan()
    assert plan_for(source, created) == AclPlan()


def test_only_acls_that_the_flow_created_are_removed():
    """When the source's ACL is removed, its copy is removed, but no ACL that a user created."""
    mine, theirs = acl("A.orders"), acl("A.orders", principal="User:bob")
    remaining = acl("other")

    assert plan_for([remaining], [mine, theirs], [mine]).remove == (mine,)
    assert plan_for([remaining], [mine, theirs], []).remove == ()


def test_a_copied_acl_stays_while_any_source_acl_maps_to_it():
    """ALL and READ map to one ACL. The remote topic of a hidden or deselected topic keeps its ACLs."""
    mine = acl("A.orders")

    assert plan_for([acl("orders", Operation.ALL)], [mine], [mine]) == AclPlan()
    assert plan_for([acl("orders")], [mine], [mine], topics=(), acl_rules=rules("payments")) == AclPlan()


def test_a_source_without_any_acl_removes_nothing():
    """An authorizer that has lost its data must not change the access to all copies."""
    mine = acl("A.orders")

    plan = plan_for([], [mine], [mine])

    assert plan.remove == ()
    assert plan.left_out[0].startswith("1 ACLs of the copies are kept")


def test_an_acl_removed_by_a_user_is_no_longer_owned_unless_the_source_has_it():
    """If the user creates the ACL again later, it belongs to the user.

    If the source has it, the flow creates it again.
    """
    mine = acl("A.orders")

    assert plan_for([acl("orders")], [], [mine]) == AclPlan(create=(mine,))
    assert plan_for([acl("other")], [], [mine]).forget == (mine,)


def test_marks_are_decoded_as_encoded_and_only_for_their_naming():
    """A flow with a different naming has different copies. Records of other types are ignored."""
    binding = acl("A.orders", principal='User:CN="a",OU=b')

    key, value = encode_mark(binding, naming="default .", owned=True)

    assert decode_mark(key, value, naming="default .") == (binding, True)
    assert decode_mark(*encode_mark(binding, naming="default .", owned=False), naming="default .") == (
        binding,
        False,
    )
    assert decode_mark(key, value, naming="identity .") is None
    for other in (b"", b"[]", b'{"type":"anchor"}', b'{"type":"acl","naming":"default ."}'):
        assert decode_mark(other, b"{}", naming="default .") is None


def allows(acls: list[AclBinding], topic: str) -> bool:
    """Returns whether Alice may read *topic* by the rules of StandardAuthorizer."""

    def matches(binding: AclBinding) -> bool:
        if binding.pattern_type == PREFIXED:
            return topic.startswith(binding.resource_name)
        return binding.resource_name in {topic, "*"}

    permissions = {binding.permission_type for binding in acls if matches(binding)}
    return DENY not in permissions and ALLOW in permissions


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
    """This holds for any combination of literal and prefixed ACLs."""
    acl_rules = rules(separator=separator)

    plan = plan_for(source, topics=tuple(topics), acl_rules=acl_rules)

    for topic in topics:
        assert allows(list(plan.create), acl_rules.target_topic(topic)) == allows(source, topic)
    assert not allows(list(plan.create), "orders-of-the-target")


@given(source=source_acls, before=source_acls, foreign=source_acls, topics=st.sets(names, max_size=4))
def test_a_second_pass_writes_nothing_and_foreign_acls_stay(
    source: list[AclBinding], before: list[AclBinding], foreign: list[AclBinding], topics: set[str]
):
    """This holds for any ACLs that the flow and other users have created before."""
    acl_rules = rules()
    owned = {copy for source_acl in before if (copy := target_acl(source_acl, acl_rules)) is not None} - set(
        foreign
    )
    target = owned | set(foreign)

    plan = plan_for(source, list(target), list(owned), tuple(topics), acl_rules)
    after = (target | set(plan.create)) - set(plan.remove)
    owned_after = (owned | set(plan.create)) - set(plan.remove) - set(plan.forget)
    second = plan_for(source, list(after), list(owned_after), tuple(topics), acl_rules)

    assert set(foreign) <= after
    assert (second.create, second.remove, second.forget) == ((), (), ())


def test_first_acls_are_those_of_topics_without_any_other_acl():
    """A prefixed ACL or `*` also covers topics, but an ACL of one topic does not cover its prefix."""
    created = (acl("A.x"), acl("A.y"), acl("A.", pattern=PREFIXED))

    assert first_acls(created, []) == created
    assert first_acls(created, [acl("A.x", principal="User:bob")]) == (created[1], created[2])
    assert first_acls(created, [acl("A.", pattern=PREFIXED, principal="User:bob")]) == ()
    assert first_acls(created, [acl("A.x", pattern=PREFIXED)]) == (created[1], created[2])
    assert first_acls(created, [acl("*", principal="User:bob")]) == ()
    assert first_acls([acl("*")], [acl("A.x")]) == (acl("*"),)
