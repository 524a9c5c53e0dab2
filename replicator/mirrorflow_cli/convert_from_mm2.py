"""Reads the Java flows of an mm2.properties, with the properties that MirrorMakerConfig derives for each.

`config.dedicated_mode` derives them. Each enabled flow becomes one JavaFlow. MM2 also emits heartbeats
between clusters without a flow: these belong to the flow in the other direction (`heartbeats.emitTo:
[Source]`), or are listed if there is none. References in settings that are not secret are resolved now, as
MM2 does at start.
"""

import re
from collections.abc import Mapping

from mirrorflow_cli.convert_java_flow import (
    CHECKPOINT,
    CLIENT_KINDS,
    HEARTBEAT,
    SOURCE,
    ConversionFindings,
    JavaCluster,
    JavaFlow,
)
from mirrorflow_cli.convert_security import ConvertedSecurity
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.properties import PropertyReader, has_reference, read_list
from mirrorflow_replicator.config import clients, keys
from mirrorflow_replicator.config.dedicated_mode import (
    connector_properties,
    load_mm2,
    read_mm2,
    worker_properties,
)
from mirrorflow_replicator.config.key_rows import Scope, Verdict
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver

_NAMES = {
    SOURCE: "MirrorSourceConnector",
    CHECKPOINT: "MirrorCheckpointConnector",
    HEARTBEAT: "MirrorHeartbeatConnector",
}
_HEARTBEATS = "emit.heartbeats.enabled"
_EMIT_TO = "mirrorflow.heartbeats.emit.to"
_SECRET = re.compile(
    r"(.*\.)?(jaas\.config|password|secret|passphrase|keystore\.key|certificate\.chain|certificates)"
)
_SIDE = re.compile(r"(source|target)\.(cluster|consumer|producer|admin)\.")
# The reader's text for a setting without effect; its warnings about comments and old names are not losses.
_NO_EFFECT = re.compile(r"no effect")
_ADDRESS_SCHEME = re.compile(r"^[A-Za-z_]+://")
# Settings of the process, which its runner or the operator chooses; a MirrorFlow has none of them.
_PROCESS = re.compile(
    r"(mirrorflow\.http\.|listeners|rest\.|dedicated\.mode|admin\.listeners|access\.control|response\.http)"
)


def java_flows(text: str, findings: ConversionFindings) -> list[JavaFlow]:
    """Returns the enabled flows of an mm2.properties, in file order. Raises InvalidSettingError."""
    raw, aliases = read_mm2(text, [])
    _note_warnings(text, findings)
    raw = _resolved(raw, findings)
    read = PropertyReader(raw, Resolver(raw))
    pairs = [(source, target) for source in aliases for target in aliases if source != target]
    enabled = [pair for pair in pairs if read.flag(f"{pair[0]}->{pair[1]}.enabled", default=False)]
    if not enabled:
        raise InvalidSettingError(
            key="clusters",
            problem="no replication flow is enabled",
            action="set A->B.enabled=true for one of them",
        )
    for key in sorted(raw):
        if _PROCESS.match(key):
            findings.lose("", key, "it belongs to a process, which `mirrorflow run` or the operator starts")
        elif _is_dropped(key):
            findings.lose("", key, "it has no effect at the top level, as in MM2")
    beating = [pair for pair in pairs if _emits(read, *pair)]
    alone = [pair for pair in beating if pair not in enabled and pair[::-1] not in enabled]
    if alone:
        findings.lose(
            "",
            _HEARTBEATS,
            "MM2 also emits heartbeats where no flow is, and a MirrorFlow is a flow: "
            + ", ".join(f"{source}->{target}" for source, target in alone),
        )
    return [_flow(raw, source, target, enabled, beating, findings) for source, target in enabled]


def _note_warnings(text: str, findings: ConversionFindings) -> None:
    """Lists the settings that the reader ignores. Raises InvalidSettingError for unreadable text."""
    try:
        warnings = load_mm2(text)[0].warnings
    except RefusedSettingError:
        return  # The conversion finds it again, together with all other refused settings.
    for warning in warnings:
        key, _, why = warning.partition(": ")
        if " " not in key and _NO_EFFECT.search(why):
            findings.lose("", key, why)


def _is_dropped(key: str) -> bool:
    """Returns whether MM2 honours *key* for a flow only; at the top level the reader ignores it silently."""
    row = keys.find(key, (Scope.CONNECTOR,))
    return row is not None and row.verdict is Verdict.MAPPED and not row.top_level


def _emits(read: PropertyReader, source: str, target: str) -> bool:
    return read.flag(f"{source}->{target}.{_HEARTBEATS}", default=read.flag(_HEARTBEATS, default=True))


def _flow(
    raw: Mapping[str, str],
    source: str,
    target: str,
    enabled: list[tuple[str, str]],
    beating: list[tuple[str, str]],
    findings: ConversionFindings,
) -> JavaFlow:
    name = f"{source}->{target}"
    derived = {
        kind: connector_properties(raw, source, target, connector) for kind, connector in _NAMES.items()
    }
    said = derived[HEARTBEAT].get(_EMIT_TO, "target").replace(" ", "").split(",")
    emit_to = [side.capitalize() for side in said if side] if (source, target) in beating else []
    # The heartbeats of the opposite direction are the ones that this flow emits on its source.
    if (target, source) in beating and (target, source) not in enabled and "Source" not in emit_to:
        emit_to.append("Source")
        _note_other_heartbeats(raw, source, target, derived[HEARTBEAT], findings)
    worker = worker_properties(raw, source, target)
    # A flow may set its own alias for a cluster; names and stored offsets use that alias.
    source, target = (derived[SOURCE][f"{side}.cluster.alias"].strip() for side in ("source", "target"))
    return JavaFlow(
        source=_cluster(derived[SOURCE], "source", source, name, findings),
        target=_cluster(derived[SOURCE], "target", target, name, findings),
        worker={key: value for key, value in worker.items() if not _PROCESS.match(key)},
        connectors={
            kind: {
                key: value
                for key, value in properties.items()
                if not _SIDE.match(key) and key != _HEARTBEATS and not clients.is_shared(key)
            }
            for kind, properties in derived.items()
        },
        emit_to=emit_to,
        claim=derived[SOURCE].get("mirrorflow.flow", f"{source}->{target}"),
    )


def _note_other_heartbeats(
    raw: Mapping[str, str], source: str, target: str, ours: Mapping[str, str], findings: ConversionFindings
) -> None:
    """Lists differing heartbeat settings of the other direction: a MirrorFlow has one set for both sides."""
    theirs = connector_properties(raw, target, source, _NAMES[HEARTBEAT])
    for key, default in (
        ("emit.heartbeats.interval.seconds", "1"),
        ("heartbeats.topic.replication.factor", "3"),
    ):
        if theirs.get(key, default) != ours.get(key, default):
            why = f"the heartbeats on {source} become those of {source}->{target}, whose setting holds for both sides"
            findings.lose(f"{target}->{source}", key, why)


def _cluster(
    properties: Mapping[str, str], side: str, alias: str, flow: str, findings: ConversionFindings
) -> JavaCluster:
    """Returns one side, from the derived properties of a connector."""
    shared = clients.shared(clients.with_prefix(properties, f"{side}.cluster."))
    addresses = read_list(shared.pop("bootstrap.servers", ""))
    security = ConvertedSecurity(shared, alias=alias, flow=flow, findings=findings)
    own: dict[str, str] = {}
    for kind in CLIENT_KINDS:
        for key, value in clients.with_prefix(properties, f"{side}.{kind}").items():
            if not clients.is_shared(key):
                own[kind + key] = value
            elif value != properties.get(f"{side}.cluster.{key}"):
                why = "one client cannot connect in another way than its cluster's"
                findings.lose(flow, f"{alias}.{kind}{key}", why)
    return JavaCluster(
        document={
            "alias": alias,
            "bootstrapServers": [_ADDRESS_SCHEME.sub("", address) for address in addresses],
            **security.document(),
        },
        clients=own,
    )


def _resolved(raw: Mapping[str, str], findings: ConversionFindings) -> dict[str, str]:
    """Returns *raw* with references resolved, except in secrets; lists and drops unresolvable settings."""
    resolver = Resolver(raw)
    out: dict[str, str] = {}
    for key, value in raw.items():
        if _SECRET.fullmatch(key) or key.startswith(PROVIDERS_KEY):
            out[key] = value
            continue
        out[key] = resolver.resolve_value(value)
        if has_reference(out[key]):
            findings.lose("", key, f"{out[key]} cannot be resolved here; write the value into the MirrorFlow")
            del out[key]
    return out
