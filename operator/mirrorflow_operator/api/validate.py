"""What the fields of a MirrorFlow must be to each other: a list of rules, each `flow -> [FieldError]`.

Types have been checked before (`spec`). A rule looks at one thing, names the field as kubectl would, and says what to
write instead. Here are the rules of the flow as a whole; those of topics, of clusters and of connectors stand beside. The
CRD's CEL rules say the same; these also serve `mirrorflow`, which has no API server.
"""

from collections.abc import Callable, Iterable

from mirrorflow_operator.api import (
    validate_cluster,
    validate_colocation,
    validate_connectors,
    validate_topics,
)
from mirrorflow_operator.api.quantity import amount
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import FieldError

SAMPLE_MIN = 1e-6  # a window of a million
EXECUTOR_MEMORY_MIN = "768Mi"
Rule = Callable[[MirrorFlow], Iterable[FieldError]]


def check(flow: MirrorFlow) -> list[FieldError]:
    """Every slip that any rule finds in *flow*, in the order of `RULES`."""
    return [error for rule in RULES for error in rule(flow)]


def clusters_differ(flow: MirrorFlow) -> Iterable[FieldError]:
    """A cluster copied into itself under its own name would copy its copies for ever."""
    source, target = flow.spec.source, flow.spec.target
    if source.alias == target.alias:
        yield FieldError(
            path="spec.target.alias",
            message=f"it is {target.alias}, as the source's",
            action="give each cluster its own alias",
        )
    shared = sorted(set(source.bootstrap_servers) & set(target.bootstrap_servers))
    if shared:
        yield FieldError(
            path="spec.target.bootstrapServers",
            message=f"{shared[0]} is also an address of the source, so the flow would copy what it has copied",
            action="name two different clusters",
        )


def limits_are_whole(flow: MirrorFlow) -> Iterable[FieldError]:
    """A rate of nothing is a paused flow, and less than a byte is a slip."""
    spec = flow.spec
    for path, part in (("limits", spec.limits), ("seed", spec.seed), ("verify", spec.verify)):
        limit = None if part is None else part.bytes_per_second
        if limit is not None and amount(limit) < 1:
            yield FieldError(
                path=f"spec.{path}.bytesPerSecond",
                message=f"{limit} is no rate",
                action="write a number of bytes such as 50Mi, or set spec.state to Paused",
            )


def heartbeats_are_listed_once(flow: MirrorFlow) -> Iterable[FieldError]:
    """A set."""
    sides = flow.spec.heartbeats.emit_to
    if len(set(sides)) < len(sides):
        yield FieldError(
            path="spec.heartbeats.emitTo", message="a side is listed twice", action="remove one of them"
        )


def schedule_has_five_fields(flow: MirrorFlow) -> Iterable[FieldError]:
    """Kubernetes' cron, of which the API server checks the rest."""
    verify = flow.spec.verify
    if verify is not None and verify.schedule and len(verify.schedule.split()) != 5:
        yield FieldError(
            path="spec.verify.schedule",
            message=f"{verify.schedule!r} has not five fields",
            action='write minute, hour, day, month and weekday, such as "0 3 * * *"',
        )


def something_is_compared(flow: MirrorFlow) -> Iterable[FieldError]:
    """A verification of nothing would find everything equal."""
    verify = flow.spec.verify
    if verify is not None and float(verify.sample) < SAMPLE_MIN:
        yield FieldError(
            path="spec.verify.sample",
            message=f"{verify.sample} compares nothing",
            action="write a part of all windows such as 0.1, or 1.0 for all",
        )


def executors_have_room(flow: MirrorFlow) -> Iterable[FieldError]:
    """Spark's Java alone takes two thirds of this."""
    for name, job in (("seed", flow.spec.seed), ("verify", flow.spec.verify)):
        if job is None:
            continue
        resources = job.executors.resources
        for part, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            if amounts.memory is not None and amount(amounts.memory) < amount(EXECUTOR_MEMORY_MIN):
                yield FieldError(
                    path=f"spec.{name}.executors.resources.{part}.memory",
                    message=f"{amounts.memory} is too little for an executor of Spark",
                    action=f"write {EXECUTOR_MEMORY_MIN} or more",
                )


RULES: tuple[Rule, ...] = (
    clusters_differ,
    *validate_topics.RULES,
    limits_are_whole,
    heartbeats_are_listed_once,
    schedule_has_five_fields,
    something_is_compared,
    executors_have_room,
    *validate_cluster.RULES,
    *validate_connectors.RULES,
    *validate_colocation.RULES,
)
