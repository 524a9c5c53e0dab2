"""Which ACLs fence topics, with and without exceptions."""

import pytest

from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_replicator.switchover.acl_fence import fence_acls, fenced_prefixes

PREFIXED = PatternType.PREFIXED


def acl(
    topic: str,
    principal: str,
    operation: Operation = Operation.WRITE,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=int(pattern),
        principal=principal,
        host="*",
        operation=int(operation),
        permission_type=int(permission),
    )


def denied(*acls: AclBinding, except_principals: tuple[str, ...] = ("User:mirror",)) -> set[tuple[str, str]]:
    """Returns topic and principal of each DENY of the topics `orders` and `payments`."""
    fence = fence_acls(["orders", "payments"], acls, except_principals=except_principals)
    assert {(int(Operation.WRITE), int(Permission.DENY), int(PatternType.LITERAL), "*")} >= {
        (binding.operation, binding.permission_type, binding.pattern_type, binding.host) for binding in fence
    }
    return {(binding.resource_name, binding.principal) for binding in fence}


def test_without_exceptions_all_principals_are_denied():
    assert {("orders", "User:*"), ("payments", "User:*")} == denied(
        acl("orders", "User:app"), except_principals=()
    )


@pytest.mark.parametrize(
    "allowed",
    [
        acl("orders", "User:app"),
        acl("orders", "User:app", Operation.ALL),
        acl("ord", "User:app", pattern=PREFIXED),
        acl("orders", "User:mirror"),
    ],
    ids=["write", "all", "prefixed", "exception"],
)
def test_with_an_exception_each_principal_that_may_write_is_denied_by_name(allowed: AclBinding):
    expected = set() if allowed.principal == "User:mirror" else {("orders", "User:app")}

    assert expected == denied(allowed)


def test_a_principal_that_may_write_all_topics_is_denied_each_fenced_topic():
    assert {("orders", "User:app"), ("payments", "User:app")} == denied(acl("*", "User:app"))


@pytest.mark.parametrize(
    "other",
    [
        acl("orders", "User:app", Operation.READ),
        acl("orders", "User:app", permission=Permission.DENY),
        acl("order", "User:app"),
        acl("orders-2", "User:app", pattern=PREFIXED),
    ],
    ids=["reader", "denied", "another-topic", "another-prefix"],
)
def test_a_principal_without_write_access_is_not_denied(other: AclBinding):
    assert set() == denied(other)


def test_an_exception_is_refused_if_an_acl_allows_all_principals_to_write():
    with pytest.raises(ValueError, match=r"Allow Write on topic orders for User:\*"):
        denied(acl("orders", "User:*"))


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders.*", "orders"),
        ("orders\\..*", "orders."),
        ("eu-west_1.*", "eu-west_1"),
        (".*", None),
        ("orders", None),
        ("or.ers.*", None),
        ("orders-[0-9]+", None),
        ("(orders|payments).*", None),
        ("orders.*-eu", None),
    ],
)
def test_later_topics_are_fenced_only_for_a_pattern_that_selects_a_whole_prefix(
    pattern: str, prefix: str | None
):
    assert fenced_prefixes([pattern], [], lambda _: True) == ({prefix} if prefix else set())


def test_a_prefix_of_an_existing_topic_outside_the_flow_is_not_fenced():
    existing = ["orders-eu", "orders-private"]

    assert fenced_prefixes(["orders.*"], existing, lambda topic: topic != "orders-private") == set()
    assert fenced_prefixes(["orders.*"], [*existing, "other"], lambda topic: topic != "other") == {"orders"}


@pytest.mark.parametrize(
    ("excluded", "is_fenced"),
    [
        ("orders-private", False),
        ("orders-private.*", False),
        ("ord.*-tmp", False),
        ("ordersx?", False),
        (".*-tmp", False),
        ("(a|orders)-tmp", False),
        ("payments|orders-tmp", False),
        ("\\Qorders-tmp\\E", False),
        ("ord", True),
        ("payments.*", True),
        ("payments?-tmp", True),
        (r".*\.replica", True),
    ],
)
def test_a_prefix_that_excluded_topics_may_have_is_not_fenced(excluded: str, *, is_fenced: bool):
    """Such topics may have other writers. Topics that MM2 excludes by default, such as copies of MM2, do not count."""
    fenced = fenced_prefixes(["orders.*"], [], lambda _: True, excluded=[excluded])

    assert fenced == ({"orders"} if is_fenced else set())


def later(*acls: AclBinding, except_principals: tuple[str, ...]) -> set[tuple[str, str, int]]:
    """Returns name, principal and pattern of each DENY of topics that begin with `orders`, none of which exists yet."""
    fence = fence_acls([], acls, except_principals=except_principals, prefixes=["orders"])
    return {(binding.resource_name, binding.principal, binding.pattern_type) for binding in fence}


def test_without_exceptions_all_principals_are_denied_later_topics():
    assert later(except_principals=()) == {("orders", "User:*", int(PREFIXED))}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (acl("*", "User:app"), ("orders", "User:app", int(PREFIXED))),
        (acl("ord", "User:app", pattern=PREFIXED), ("orders", "User:app", int(PREFIXED))),
        (acl("orders-eu", "User:app", pattern=PREFIXED), ("orders-eu", "User:app", int(PREFIXED))),
        (acl("orders-eu", "User:app"), ("orders-eu", "User:app", int(PatternType.LITERAL))),
        (acl("payments", "User:app", pattern=PREFIXED), None),
        (acl("ord", "User:app"), None),
        (acl("*", "User:mirror"), None),
    ],
    ids=["all", "shorter", "longer", "one", "another", "another-one", "exception"],
)
def test_with_an_exception_each_principal_is_denied_the_later_topics_that_it_may_write(
    allowed: AclBinding, expected: tuple[str, str, int] | None
):
    assert later(allowed, except_principals=("User:mirror",)) == ({expected} if expected else set())


def test_an_exception_is_refused_if_an_acl_allows_all_principals_to_write_later_topics():
    with pytest.raises(ValueError, match=r"for User:\*"):
        later(acl("*", "User:*"), except_principals=("User:mirror",))
