"""Which ACLs the copies of topics are given, and which are taken away again: decisions only.

MM2's rules (`MirrorSourceConnector`: syncTopicAcls, targetAclBinding): ACLs of topics follow under the copies' names,
ALLOW WRITE never does, ALLOW ALL becomes ALLOW READ, all others stay as they are. Three things are more than MM2 does:
ACLs of prefixes follow where the naming keeps prefixes, and so does `*`; only differences are written; and what this flow
itself has created is removed when nothing on the source stands for it any more (docs/decisions/007-acl-sync.md).
An ACL that the flow has not created is never removed, whatever it says.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum
from typing import Any

ANY_NAME = "*"  # as a LITERAL pattern: every resource of the type
TOPIC = 2  # ResourceType


class PatternType(IntEnum):
    """How a resource is named in an ACL (org.apache.kafka.common.resource.PatternType)."""

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
        """For a human: `Allow Read on topic orders for User:alice`."""
        prefixed = "topics that begin with" if self.pattern_type == PatternType.PREFIXED else "topic"
        host = "" if self.host == "*" else f" from host {self.host}"
        permission = _word(Permission, self.permission_type)
        operation = _word(Operation, self.operation)
        return f"{permission} {operation} on {prefixed} {self.resource_name} for {self.principal}{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRules:
    """Which names are the flow's. *target_prefix* gives None where the naming does not keep prefixes.

    *own_names*: the copies' names are the flow's alone (they begin with the source's alias). Then a prefix may reach beyond
    what the flow copies, for nothing else is there; otherwise it would open, or close, topics that are no copies.
    """

    selects: Callable[[str], bool]
    target_topic: Callable[[str], str]
    target_prefix: Callable[[str], str | None]
    own_names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """What makes the target's ACLs follow, sorted. *forget*: created by the flow, and removed by somebody else.

    *left_out*: a sentence for each ACL of the source that cannot follow, and for those of the target that stay behind.
    """

    create: tuple[AclBinding, ...] = ()
    remove: tuple[AclBinding, ...] = ()
    forget: tuple[AclBinding, ...] = ()
    left_out: tuple[str, ...] = ()


def plan_acls(
    *,
    source: Collection[AclBinding],
    target: Collection[AclBinding],
    ours: Collection[AclBinding],
    topics: Collection[str],
    rules: AclRules,
) -> AclPlan:
    """Compare both clusters. *ours* are those that the flow has created; *topics* those of the source that it copies now."""
    wanted: set[AclBinding] = set()
    # All that stands for something on the source, whether or not the flow copies that topic just now: a topic that is
    # hidden for a while, or is excluded from now on, does not lose its copy's ACLs.
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
    gone = {*ours} & there - kept
    if gone and not of_topics:
        # More likely an authorizer without its data than the last ACL taken away; one by one they would be followed.
        left_out.append(
            f"{len(gone)} ACLs of the copies stay, for the source shows no ACL of any topic any more; remove them yourself."
        )
        gone = set()
    return AclPlan(
        create=tuple(sorted(wanted - there)),
        remove=tuple(sorted(gone)),
        forget=tuple(sorted({*ours} - there - wanted)),
        left_out=tuple(left_out),
    )


def target_acl(acl: AclBinding, rules: AclRules) -> AclBinding | None:
    """*acl* as it is for the copies; None if there is none."""
    name, pattern = acl.resource_name, acl.pattern_type
    if pattern == PatternType.LITERAL and name != ANY_NAME:
        name = rules.target_topic(name)
    else:
        prefix = rules.target_prefix(name if pattern == PatternType.PREFIXED else "")
        if prefix is None:
            return None
        # All topics of the source are, on the target, those with its alias; where names are unchanged, all of them.
        name, pattern = (prefix, int(PatternType.PREFIXED)) if prefix else (ANY_NAME, pattern)
    copy = replace(acl, resource_name=name, pattern_type=pattern)
    # Copies are written by the flow alone: who may do anything to a topic may read its copy.
    if (acl.permission_type, acl.operation) == (Permission.ALLOW, Operation.ALL):
        copy = replace(copy, operation=int(Operation.READ))
    return copy


def encode_mark(acl: AclBinding, *, naming: str, ours: bool) -> tuple[bytes, bytes]:
    """Key and value of the record that says whether the flow has created *acl*, while its naming is *naming*."""
    return _dump({"type": "acl", "naming": naming, **asdict(acl)}), _dump({"ours": ours})


def decode_mark(key: bytes, value: bytes, *, naming: str | None = None) -> tuple[AclBinding, bool] | None:
    """What `encode_mark` wrote; None for any other record, and for another *naming*, whose copies are not this one's."""
    try:
        head: dict[str, Any] = json.loads(key)
        written = head.pop("naming")
        if head.pop("type") != "acl" or naming not in {None, written}:
            return None
        names = {field.name for field in fields(AclBinding)}
        acl = AclBinding(**{name: item for name, item in head.items() if name in names})
        return acl, json.loads(value)["ours"] is True
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _writes(acl: AclBinding) -> bool:
    """Nobody but the flow writes to its copies."""
    return (acl.permission_type, acl.operation) == (Permission.ALLOW, Operation.WRITE)


def _is_of_flow(acl: AclBinding, topics: Sequence[str], rules: AclRules) -> bool:
    return rules.selects(acl.resource_name) or (rules.own_names and _reaches_flow(acl, topics))


def _reaches_flow(acl: AclBinding, topics: Sequence[str]) -> bool:
    """Whether a pattern matches one of *topics*, which are sorted: thousands of patterns may meet thousands of topics."""
    if acl.resource_name == ANY_NAME and acl.pattern_type == PatternType.LITERAL:
        return bool(topics)
    at = bisect_left(topics, acl.resource_name)
    first = topics[at] if at < len(topics) else ""
    if acl.pattern_type == PatternType.PREFIXED:
        return first.startswith(acl.resource_name)
    return first == acl.resource_name


def _word(kind: type[IntEnum], number: int) -> str:
    """`DescribeConfigs`, as kafka-acls has it; a number that a later Kafka may have added as it is."""
    try:
        return kind(number).name.title().replace("_", "")
    except ValueError:
        return str(number)


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
