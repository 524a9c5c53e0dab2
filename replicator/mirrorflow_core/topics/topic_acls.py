"""The ACLs that a flow needs, and those of the copies to create and to remove on the target. No I/O.

Copying follows MM2's rules (`MirrorSourceConnector`: syncTopicAcls, targetAclBinding): topic ACLs are copied with the
copies' names, except ALLOW WRITE; ALLOW ALL becomes ALLOW READ. Three things go beyond MM2: prefixed ACLs and
`*` are copied if the naming keeps prefixes; only differences are written; and ACLs that this flow created are
removed when the source no longer has a matching ACL (docs/decisions/007-acl-sync.md). An ACL that the flow
did not create is never removed.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, fields, replace
from enum import IntEnum
from typing import Any

from mirrorflow_core.light_dataclasses import dataclass

ANY_NAME = "*"  # as a LITERAL pattern: all resources of the type
TOPIC = 2  # ResourceType


class PatternType(IntEnum):
    """How an ACL matches resource names (org.apache.kafka.common.resource.PatternType)."""

    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """org.apache.kafka.common.acl.AclPermissionType."""

    DENY = 2
    ALLOW = 3


class Operation(IntEnum):
    """org.apache.kafka.common.acl.AclOperation, those of topics."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11

    @property
    def acl_name(self) -> str:
        """Returns the name of the operation in kafka-acls."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """One ACL; the numbers are those of ResourceType, PatternType, AclOperation and AclPermissionType."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def __str__(self) -> str:
        """Returns the ACL as text: `Allow Read on topic orders for User:alice`."""
        prefixed = "topics that begin with" if self.pattern_type == PatternType.PREFIXED else "topic"
        host = "" if self.host == "*" else f" from host {self.host}"
        permission = _acl_name(Permission, self.permission_type)
        operation = _acl_name(Operation, self.operation)
        return f"{permission} {operation} on {prefixed} {self.resource_name} for {self.principal}{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRules:
    """The flow's selection and naming, for ACLs.

    `target_prefix` returns None where the naming does not keep prefixes. `own_names`: only this flow uses the
    copies' names (they begin with the source's alias). Then a prefix may match more than the flow copies,
    because no other topic has it. Otherwise it would open, or close, topics that are not copies.
    """

    selects: Callable[[str], bool]
    target_topic: Callable[[str], str]
    target_prefix: Callable[[str], str | None]
    own_names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """The changes of the target's ACLs, sorted. `forget`: ACLs that the flow created and others removed.

    `left_out`: a sentence for each source ACL that cannot be copied, and for outdated target ACLs that stay.
    """

    create: tuple[AclBinding, ...] = ()
    remove: tuple[AclBinding, ...] = ()
    forget: tuple[AclBinding, ...] = ()
    left_out: tuple[str, ...] = ()


def plan_acls(
    *,
    source: Collection[AclBinding],
    target: Collection[AclBinding],
    owned: Collection[AclBinding],
    topics: Collection[str],
    rules: AclRules,
) -> AclPlan:
    """Compares both clusters. *owned*: ACLs that the flow created; *topics*: source topics that it copies now."""
    wanted: set[AclBinding] = set()
    # Target ACLs with a matching source ACL, even if the flow does not copy that topic now. So the copy of a
    # topic that is temporarily hidden, or newly excluded, keeps its ACLs.
    kept: set[AclBinding] = set()
    left_out = []
    known = sorted(topics)
    of_topics = sorted(acl for acl in source if acl.resource_type == TOPIC)
    for acl in of_topics:
        if _writes(acl):
            continue
        copy = target_acl(acl, rules)
        if copy is not None:
            kept.add(copy)
        if copy is not None and _is_of_flow(acl, known, rules):
            wanted.add(copy)
        elif _reaches_flow(acl, known):
            why = (
                "the naming does not keep prefixes"
                if copy is None
                else "it would reach topics that are no copies"
            )
            left_out.append(f"{acl} is not copied: {why}.")
    there = set(target)
    gone = {*owned} & there - kept
    if gone and not of_topics:
        # Most likely the authorizer has lost its data. ACLs that a user removes one by one are removed here
        # one by one.
        left_out.append(
            f"{len(gone)} ACLs of the copies are kept because the source returned no topic ACLs; remove them manually."
        )
        gone = set()
    return AclPlan(
        create=tuple(sorted(wanted - there)),
        remove=tuple(sorted(gone)),
        forget=tuple(sorted({*owned} - there - wanted)),
        left_out=tuple(left_out),
    )


def first_acls(create: Collection[AclBinding], target: Collection[AclBinding]) -> tuple[AclBinding, ...]:
    """Returns those of *create* that are the first ACLs of their topics: no ACL of *target* names these yet."""
    literals = {acl.resource_name for acl in target if acl.pattern_type == PatternType.LITERAL}
    prefixes = tuple({acl.resource_name for acl in target if acl.pattern_type == PatternType.PREFIXED})
    if ANY_NAME in literals:
        return ()
    return tuple(
        acl
        for acl in create
        if not acl.resource_name.startswith(prefixes)
        and not (acl.pattern_type == PatternType.LITERAL and acl.resource_name in literals)
    )


def target_acl(acl: AclBinding, rules: AclRules) -> AclBinding | None:
    """Returns *acl* for the copies; None if it cannot be copied."""
    name, pattern = acl.resource_name, acl.pattern_type
    if pattern == PatternType.LITERAL and name != ANY_NAME:
        name = rules.target_topic(name)
    else:
        prefix = rules.target_prefix(name if pattern == PatternType.PREFIXED else "")
        if prefix is None:
            return None
        # `*` on the source means all topics with the source's alias on the target, or all topics if names are
        # unchanged.
        name, pattern = (prefix, int(PatternType.PREFIXED)) if prefix else (ANY_NAME, pattern)
    copy = replace(acl, resource_name=name, pattern_type=pattern)
    # Only the flow writes to copies, so ALLOW ALL on a topic becomes ALLOW READ on its copy.
    if (acl.permission_type, acl.operation) == (Permission.ALLOW, Operation.ALL):
        copy = replace(copy, operation=int(Operation.READ))
    return copy


def encode_mark(acl: AclBinding, *, naming: str, owned: bool) -> tuple[bytes, bytes]:
    """Returns key and value of the record that marks whether the flow created *acl* under *naming*."""
    return _dump({"type": "acl", "naming": naming, **asdict(acl)}), _dump({"owned": owned})


def decode_mark(key: bytes, value: bytes, *, naming: str | None = None) -> tuple[AclBinding, bool] | None:
    """Returns the ACL and mark that `encode_mark` wrote; None for other records, and for another *naming*."""
    try:
        head: dict[str, Any] = json.loads(key)
        written = head.pop("naming")
        if head.pop("type") != "acl" or naming not in {None, written}:
            return None
        names = {field.name for field in fields(AclBinding)}
        acl = AclBinding(**{name: item for name, item in head.items() if name in names})
        return acl, json.loads(value)["owned"] is True
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _writes(acl: AclBinding) -> bool:
    """Returns whether *acl* is ALLOW WRITE, which is never copied: only the flow writes to its copies."""
    return (acl.permission_type, acl.operation) == (Permission.ALLOW, Operation.WRITE)


def _is_of_flow(acl: AclBinding, topics: Sequence[str], rules: AclRules) -> bool:
    return rules.selects(acl.resource_name) or (rules.own_names and _reaches_flow(acl, topics))


def _reaches_flow(acl: AclBinding, topics: Sequence[str]) -> bool:
    """Returns whether *acl* matches one of *topics*. By bisection in sorted topics: both may be thousands."""
    if acl.resource_name == ANY_NAME and acl.pattern_type == PatternType.LITERAL:
        return bool(topics)
    index = bisect_left(topics, acl.resource_name)
    first = topics[index] if index < len(topics) else ""
    if acl.pattern_type == PatternType.PREFIXED:
        return first.startswith(acl.resource_name)
    return first == acl.resource_name


def _acl_name(kind: type[IntEnum], number: int) -> str:
    """Returns the name as in kafka-acls (`DescribeConfigs`), or an unknown number of a later Kafka."""
    try:
        return kind(number).name.title().replace("_", "")
    except ValueError:
        return str(number)


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


READ, WRITE, CREATE, ALTER = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.ALTER
DESCRIBE = Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


@dataclass(frozen=True, slots=True)
class Access:
    """The operations on one kind of resource. Without one that is only `useful`, a connector runs and warns."""

    needed: tuple[Operation, ...]
    useful: tuple[Operation, ...] = ()

    @property
    def acl_names(self) -> tuple[str, ...]:
        """All of them, as kafka-acls spells them."""
        return tuple(operation.acl_name for operation in (*self.needed, *self.useful))

    @property
    def existing(self) -> tuple[Operation, ...]:
        """What is needed on a resource that exists."""
        return tuple(operation for operation in self.needed if operation is not CREATE)


# Topics of the source, and their copies as the source connector writes them.
SOURCE_TOPIC = Access((READ, DESCRIBE, DESCRIBE_CONFIGS))


def copied_topic(*, reads_configs: bool, alters_configs: bool) -> Access:
    """Returns what the source connector needs on a copy."""
    configs = (DESCRIBE_CONFIGS,) * reads_configs + (ALTER_CONFIGS,) * alters_configs
    return Access((CREATE, WRITE, READ, DESCRIBE, ALTER, *configs))


# Internal topics: stored offsets and what nodes share; logs that their writer reads back; offset syncs; those that
# another connector writes; heartbeats.
STORE = Access((CREATE, WRITE, READ, DESCRIBE, DESCRIBE_CONFIGS))
LOG = Access((CREATE, WRITE, READ, DESCRIBE), useful=(DESCRIBE_CONFIGS,))
WRITTEN_SYNCS = Access((CREATE, WRITE, DESCRIBE), useful=(DESCRIBE_CONFIGS,))
READ_LOG = Access((READ, DESCRIBE))
HEARTBEATS = Access((CREATE, WRITE, DESCRIBE))
# Groups and the topics of their offsets: read on the source, moved on the target.
GROUP_READ = Access((DESCRIBE,))
GROUP_MOVED = Access((READ, DESCRIBE))
# The group by which nodes share work.
GROUP_OF_NODES = Access((READ, DESCRIBE))
TRANSACTIONAL_ID = Access((WRITE, DESCRIBE))
# What is only named, and the topic with which a fence is tried, as an application writes it.
DESCRIBED = Access((DESCRIBE,))
WRITTEN = Access((WRITE, DESCRIBE))
# The cluster itself.
ACLS_READ = Access((DESCRIBE,))
ACLS_WRITTEN = Access((DESCRIBE, ALTER))
# A fence that names principals depends on what brokers allow where there is no ACL.
NAMED_FENCE = Access((DESCRIBE, ALTER, DESCRIBE_CONFIGS))
