"""Rules of what is copied, under which name and from where (see `validate`)."""

import re
from collections.abc import Iterable
from datetime import datetime

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.topics import NamingPolicy, Position
from mirrorflow_operator.errors import FieldError


def aliases_can_be_told_from_topics(flow: MirrorFlow) -> Iterable[FieldError]:
    """MM2 finds the source of a remote topic at the first separator; an alias that holds one hides loops from it."""
    naming = flow.spec.topics.naming
    if naming.policy is not NamingPolicy.PREFIX:
        return
    for side, cluster in (("source", flow.spec.source), ("target", flow.spec.target)):
        if naming.separator in cluster.alias:
            yield FieldError(
                path=f"spec.{side}.alias",
                message=f"it holds the separator {naming.separator!r}, so the alias cannot be told from the topic",
                action="choose another alias, or another spec.topics.naming.separator",
            )


def patterns_are_regexes(flow: MirrorFlow) -> Iterable[FieldError]:
    """Names and regexes; MM2 cuts its lists at commas, so none can be part of one."""
    topics, groups = flow.spec.topics, flow.spec.groups
    for path, patterns in (
        ("spec.topics.include", topics.include),
        ("spec.topics.exclude", topics.exclude),
        ("spec.topics.configs.exclude", topics.configs.exclude),
        *(
            (f"spec.topics.configs.exceptions[{at}].{name}", patterns)
            for at, one in enumerate(topics.configs.exceptions)
            for name, patterns in (("topics", one.topics), ("exclude", one.exclude))
        ),
        ("spec.groups.include", groups.include),
        ("spec.groups.exclude", groups.exclude),
    ):
        for at, pattern in enumerate(patterns):
            problem = _pattern_problem(pattern)
            if problem:
                yield FieldError(path=f"{path}[{at}]", message=problem[0], action=problem[1])
        for at, pattern in enumerate(patterns):
            if pattern in patterns[:at]:
                yield FieldError(
                    path=f"{path}[{at}]", message=f"{pattern} is listed twice", action="remove one of them"
                )


def exceptions_are_pairs(flow: MirrorFlow) -> Iterable[FieldError]:
    """They travel as `topics:settings`; a colon that is not part of `(?:` would part them elsewhere."""
    for at, one in enumerate(flow.spec.topics.configs.exceptions):
        for name, patterns in (("topics", one.topics), ("exclude", one.exclude)):
            for index, pattern in enumerate(patterns):
                if re.search(r"(?<!\(\?):", pattern):
                    yield FieldError(
                        path=f"spec.topics.configs.exceptions[{at}].{name}[{index}]",
                        message=f"{pattern!r} holds a colon, which no topic and no setting has in its name",
                        action="remove it",
                    )


def topics_are_selected(flow: MirrorFlow) -> Iterable[FieldError]:
    """An empty list matches nothing, in MM2 as here."""
    if not flow.spec.topics.include:
        yield FieldError(
            path="spec.topics.include",
            message="it is empty, so no topic would be copied",
            action='write [".*"] for all topics',
        )


def start_is_complete(flow: MirrorFlow) -> Iterable[FieldError]:
    """A timestamp belongs to position Timestamp, and to it alone."""
    start = flow.spec.topics.start_from
    path = "spec.topics.startFrom.timestamp"
    if start.position is Position.TIMESTAMP:
        if start.timestamp is None:
            yield FieldError(
                path=path, message="it is missing", action="write a moment such as 2026-01-31T00:00:00Z"
            )
        elif not _is_moment(start.timestamp):
            yield FieldError(
                path=path,
                message=f"{start.timestamp!r} is no moment with a time zone",
                action="write it as 2026-01-31T00:00:00Z",
            )
    elif start.timestamp is not None:
        yield FieldError(
            path=path,
            message=f"it contradicts position {start.position.value}",
            action="set position to Timestamp, or remove it",
        )


def replication_factor_is_possible(flow: MirrorFlow) -> Iterable[FieldError]:
    """-1 or a count; a topic without replicas does not exist."""
    if flow.spec.topics.replication_factor == 0:
        yield FieldError(
            path="spec.topics.replicationFactor",
            message="it is 0",
            action="write -1 for the target's default, or 1 and more",
        )


def _pattern_problem(pattern: str) -> tuple[str, str] | None:
    if "," in pattern:
        return f"{pattern!r} holds a comma, at which MM2 cuts its lists", "write two entries"
    if pattern != pattern.strip():
        return f"{pattern!r} has blanks around it, which are no part of any name", "remove them"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is no regular expression: {error}", "correct it; a lone * is written .*"
    return None


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


RULES = (
    aliases_can_be_told_from_topics,
    patterns_are_regexes,
    exceptions_are_pairs,
    topics_are_selected,
    start_is_complete,
    replication_factor_is_possible,
)
