"""`mirrorflow export`: converts MirrorFlows into the equivalent mm2.properties.

The file is for Java MM2 or `mirrorflow-replicator mm2`. Secrets stay references to files below `--secrets`,
which Java reads with the same provider. Settings that MM2 cannot express are listed on stderr.

`run` and the operator use the same plan, so the file and the flow cannot differ in meaning. Settings of a
cluster are written with its alias as prefix, settings of a flow with `A->B.`; MM2's defaults are left out. An
mm2.properties defines each cluster once: flows that reach one alias with different settings cannot share a
file.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirrorflow_cli.errors import EXIT_DONE, UsageError
from mirrorflow_cli.flow_arguments import flows_from, layout_from, valid_plans
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.java_flow import CLIENT_KINDS, MM2_DEFAULTS
from mirrorflow_cli.output import add_json_argument, print_json
from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.settings import CONFIG_EXCLUDE, GROUPS_EXCLUDE, REGISTRY_PREFIX, TOPICS_EXCLUDE
from mirrorflow_operator.api.spec import InitialPosition, MirrorFlow, Side, State
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.properties import Plan, plan_all
from mirrorflow_operator.plan.secret_layout import PROVIDER, SecretLayout

_ISOLATION = "source.consumer.isolation.level"
_HEARTBEATS = "emit.heartbeats.enabled"
_HEARTBEAT_KEYS = (
    "emit.heartbeats.interval.seconds",
    "heartbeats.topic.replication.factor",
    "replication.policy.class",
    "replication.policy.separator",
    "replication.policy.internal.topic.separator.enabled",
)
_OFFSET_SYNCS = "emit.offset-syncs.enabled"
_LISTS = {
    "topics.exclude": ",".join(TOPICS_EXCLUDE),
    "groups.exclude": ",".join(GROUPS_EXCLUDE),
    "config.properties.exclude": ",".join(CONFIG_EXCLUDE),
}
_FROM_PLAN = {
    "connector.class",
    "source.cluster.alias",
    "target.cluster.alias",
    _HEARTBEATS,
    "mirrorflow.start.from",
}
_WRITTEN_ELSEWHERE = {"name", "tasks.max", "mirrorflow.heartbeats.emit.to"}
_WORKER = ("offset.storage.", "group.id", "task.shutdown.graceful.timeout.ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=False, several=True)
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the file. Raises UsageError for flows that are invalid or do not fit into one file."""
    if not arguments.file:
        raise UsageError("Specify a flow: -f FILE (repeatable).")
    flows, layout = flows_from(arguments), layout_from(arguments)
    valid_plans(flows, layout)
    out = exported(flows, layout)
    losses = list(dict.fromkeys(out.losses))
    if arguments.json:
        print_json({"properties": out.lines, "unsupported": losses})
        return EXIT_DONE
    print(text(out.lines), end="")
    if losses:
        print("Without a counterpart in an mm2.properties:", file=sys.stderr)
        for loss in losses:
            print(f"  {loss}", file=sys.stderr)
    return EXIT_DONE


@dataclass(slots=True, kw_only=True)
class Exported:
    """The lines by key, in file order, and the settings that an mm2.properties cannot express."""

    lines: dict[str, str] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: str, flow: str) -> None:
        """Adds one line. Raises UsageError if another flow has set *key* to a different value."""
        if self.lines.setdefault(key, value) != value:
            raise UsageError(
                f"{key}: flows {self.owners[key]} and {flow} have conflicting values; mm2.properties has one section per "
                "cluster. Export them to separate files, or use the same value."
            )
        self.owners.setdefault(key, flow)


def exported(flows: Sequence[MirrorFlow], layout: SecretLayout) -> Exported:
    """Returns the mm2.properties of *flows*. Raises UsageError if they do not fit into one file."""
    out = Exported()
    pairs = [(flow.spec.source.alias, flow.spec.target.alias) for flow in flows]
    aliases = dict.fromkeys(alias for pair in pairs for alias in pair)
    out.lines["clusters"] = ", ".join(aliases)
    for index, pair in enumerate(pairs):
        if pair in pairs[:index]:
            raise UsageError(
                f"{pair[0]}->{pair[1]}: two flows have these aliases; MM2 allows one flow per pair. Export them to separate files."
            )
    planned = [plan_all(flow, layout) for flow in flows]
    for flow, plan in zip(flows, planned, strict=True):
        _clusters(out, flow, plan)
    for flow, plan in zip(flows, planned, strict=True):
        _flow(out, flow, plan)
    _heartbeats(out, flows, pairs)
    if any(f"${{{PROVIDER}:" in value for value in out.lines.values()):
        providers = {
            key: value
            for key, value in planned[0].connectors[0].worker_properties.items()
            if key.startswith("config.providers")
        }
        out.lines = {"clusters": out.lines["clusters"], **providers, **out.lines}
    return out


def _clusters(out: Exported, flow: MirrorFlow, planned: Plan) -> None:
    """Adds the addresses, security and clients of both sides, and the worker settings of the target."""
    source = _connector(planned, ConnectorKind.SOURCE)
    worker = next(
        connector for connector in planned.connectors if connector.kind is ConnectorKind.SOURCE
    ).worker_properties
    for side, alias in (("source", flow.spec.source.alias), ("target", flow.spec.target.alias)):
        for key, value in source.items():
            if key.startswith(f"{side}.cluster.") and key not in _FROM_PLAN:
                out.add(f"{alias}.{key.removeprefix(f'{side}.cluster.')}", value, planned.flow)
            elif key.startswith(tuple(f"{side}.{kind}" for kind in CLIENT_KINDS)) and key != _ISOLATION:
                out.add(f"{alias}.{key.removeprefix(f'{side}.')}", value, planned.flow)
    for connector in planned.connectors:
        if connector.kind is not ConnectorKind.SCHEMAS or flow.spec.schemas is None:
            continue
        for side, alias in (("source", flow.spec.source.alias), ("target", flow.spec.target.alias)):
            prefix = f"{side}.cluster."
            for key, value in connector.connector_properties.items():
                if key.startswith(f"{prefix}{REGISTRY_PREFIX}"):
                    out.add(f"{alias}.{key.removeprefix(prefix)}", value, planned.flow)
    written = {
        "group.id": f"{flow.spec.source.alias}-mm2",
        "offset.storage.topic": f"mm2-offsets.{flow.spec.source.alias}.internal",
        "offset.storage.store": "kafka",
    }
    for key, value in worker.items():
        if key.startswith(_WORKER) and written.get(key) != value:
            out.add(f"{flow.spec.target.alias}.{key}", value, planned.flow)


def _flow(out: Exported, flow: MirrorFlow, planned: Plan) -> None:
    """Adds the settings of one flow."""
    name = f"{flow.spec.source.alias}->{flow.spec.target.alias}"
    out.add(f"{name}.enabled", "true", planned.flow)
    if flow.spec.state is not State.RUNNING:
        out.losses.append(f"{planned.flow}: spec.state {flow.spec.state.value}: MM2 runs every enabled flow.")
    for kind in ConnectorKind:
        own = _connector(planned, kind)
        if own.get("name") != kind.java_class:
            out.losses.append(
                f"{planned.flow}: {kind.java_class} is named {own.get('name')}, and MM2's dedicated form names it by its class: "
                "it would not find the positions of this flow."
            )
        if kind is ConnectorKind.CHECKPOINT and own.get("enabled", "true").lower() == "false":
            # MM2's own keys for this: `enabled` would switch off the whole flow.
            for key in ("emit.checkpoints.enabled", "sync.group.offsets.enabled"):
                out.add(f"{name}.{key}", "false", planned.flow)
            continue
        for key, value in own.items():
            if not _is_of_flow(key) or value == MM2_DEFAULTS.get(key, _LISTS.get(key)):
                continue
            if key.startswith("offset-syncs.") and own.get(_OFFSET_SYNCS, "true").lower() == "false":
                continue  # Java refuses settings of offset syncs that are not written.
            if key == "mirrorflow.flow" and (kind is not ConnectorKind.SOURCE or value == name):
                continue  # Only the source connector claims the alias, and A->B is the default claim.
            written = out.lines.get(f"{name}.{key}")
            if written is None:
                out.add(f"{name}.{key}", value, planned.flow)
            elif written != value:
                out.losses.append(
                    f"{planned.flow}: {key} of {kind.java_class} is {value}; MM2 gives all connectors of a flow the value {written}."
                )
    _tasks(out, name, planned)
    start = flow.spec.topics.start_from
    if start.position is InitialPosition.TIMESTAMP:
        out.add(f"{name}.mirrorflow.start.from", f"timestamp:{start.timestamp}", planned.flow)
    elif start.position is InitialPosition.LATEST:
        # Java's own setting, so that Java MM2 understands it too.
        out.add(f"{name}.source.consumer.auto.offset.reset", "latest", planned.flow)


def _tasks(out: Exported, name: str, planned: Plan) -> None:
    """Adds `tasks.max`: MM2 has one for all connectors of a flow, and always runs one task for heartbeats."""
    key = "tasks.max"
    source, checkpoint = (
        _connector(planned, kind)[key] for kind in (ConnectorKind.SOURCE, ConnectorKind.CHECKPOINT)
    )
    if source != MM2_DEFAULTS[key]:
        out.add(f"{name}.{key}", source, planned.flow)
    if source != checkpoint:
        out.losses.append(
            f"{planned.flow}: tasks.max of MirrorCheckpointConnector is {checkpoint}; MM2 gives all connectors of a flow the value {source}."
        )


def _heartbeats(out: Exported, flows: Sequence[MirrorFlow], pairs: Sequence[tuple[str, str]]) -> None:
    """Adds the heartbeat settings of each pair of clusters.

    MM2 also emits heartbeats between clusters without a flow; those are switched off here.
    """
    emitted: dict[tuple[str, str], bool] = {}
    for flow, (source, target) in zip(flows, pairs, strict=True):
        sides = flow.spec.heartbeats.emit_to
        emitted[source, target] = emitted.get((source, target), False) or Side.TARGET in sides
        emitted[target, source] = emitted.get((target, source), False) or Side.SOURCE in sides
    aliases = list(dict.fromkeys(alias for pair in pairs for alias in pair))
    everywhere = {(alias, other) for alias in aliases for other in aliases if alias != other}
    if not all(emitted.get(pair, False) for pair in everywhere):
        out.lines[_HEARTBEATS] = "false"
    for (source, target), on in emitted.items():
        if not on:
            continue
        if _HEARTBEATS in out.lines:
            out.lines[f"{source}->{target}.{_HEARTBEATS}"] = "true"
        if (source, target) not in pairs:
            # Heartbeats on the source of a flow use the settings of that flow.
            for key in _HEARTBEAT_KEYS:
                if f"{target}->{source}.{key}" in out.lines:
                    out.lines[f"{source}->{target}.{key}"] = out.lines[f"{target}->{source}.{key}"]


def _is_of_flow(key: str) -> bool:
    if key in _FROM_PLAN or key in _WRITTEN_ELSEWHERE or key.startswith("config.providers"):
        return False
    if key == _ISOLATION:
        return True
    sides = tuple(f"{side}.{kind}" for side in ("source", "target") for kind in ("cluster.", *CLIENT_KINDS))
    return not key.startswith(sides)


def _connector(planned: Plan, kind: ConnectorKind) -> Mapping[str, str]:
    return next(connector.connector_properties for connector in planned.connectors if connector.kind is kind)


def text(lines: Mapping[str, str]) -> str:
    """Returns the file: general and cluster settings first, then a paragraph for each flow."""
    first = [key for key in lines if "->" not in key]
    flows = sorted((key for key in lines if "->" in key), key=lambda key: _pair_index(key, lines))
    out = [f"{key} = {_escaped(lines[key])}".rstrip() for key in first]
    before = -1
    for key in flows:
        here = _pair_index(key, lines)
        out += [""] if here != before else []
        out.append(f"{key} = {_escaped(lines[key])}".rstrip())
        before = here
    return "\n".join(out) + "\n"


def _pair_index(key: str, lines: Mapping[str, str]) -> int:
    """Returns the index of the key's pair among all pairs of aliases; a pair may have heartbeats only."""
    aliases = lines["clusters"].split(", ")
    pairs = [(alias, other) for alias in aliases for other in aliases if alias != other]
    return next(index for index, (source, other) in enumerate(pairs) if key.startswith(f"{source}->{other}."))


def _escaped(value: str) -> str:
    """Returns *value* as Java reads it: MM2 reads its file as Latin-1, so other characters are escaped."""
    return format_properties({"": value}).removeprefix("=").removesuffix("\n")
