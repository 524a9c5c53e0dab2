"""Parses mm2.properties (MM2's dedicated mode) into one `WorkerSettings` for each herder.

Derivation is that of MirrorMakerConfig: there is a herder for every ordered pair of clusters whose flow or
heartbeats are enabled. The worker lives on the target. Connectors get the source's and the target's
properties under `source.` and `target.` prefixes, and the flow's own `A->B.` properties last. References are
kept: Java resolves the worker's at start, we resolve each when a client is built. The only visible difference
is that a rotated secret takes effect.

A valid file that is probably not intended, because it copies nothing or in an endless loop, causes a warning.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from mirrorflow_core import setting_table
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import SettingPattern, compile_patterns
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import alias_split_problem, is_alias_split, worker_topic
from mirrorflow_core.setting_table import (
    DEFAULTS,
    INTERNAL_REST_KEY,
    SERVER_NAME_KEY,
    Scope,
    Verdict,
    read_properties,
)
from mirrorflow_core.settings import REGISTRY_URL_KEY, WorkerSettings
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.checkpoint_properties import checkpoint_refusal
from mirrorflow_replicator.config.connector_classes import (
    CHECKPOINT_CONNECTOR,
    HEARTBEAT_CONNECTOR,
    SCHEMA_CONNECTOR,
    SOURCE_CONNECTOR,
)
from mirrorflow_replicator.config.plugins import MIRROR_PACKAGE
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver, shown_value
from mirrorflow_replicator.config.worker_properties import (
    HTTP_CLIENT_AUTH_KEY,
    METRIC_NAMES_KEY,
    checked_listeners,
    distributed_settings,
    worker_settings,
)

_LITERAL = re.compile(r"[\w.-]+")  # a dot may match any character; in practice it separates parts of a name
# In the order in which MirrorMaker configures them.
_CONNECTORS = (SOURCE_CONNECTOR, HEARTBEAT_CONNECTOR, CHECKPOINT_CONNECTOR)
# Top-level keys with these prefixes reach the worker, and override the target cluster's own.
_WORKER_PREFIXES = (
    "offset.storage",
    "config.storage",
    "status.storage",
    "key.converter",
    "value.converter",
    "header.converter",
    "task",
    "worker",
    "replication.policy",
)
# Own and REST keys have no cluster: they belong to the process. The internal server's `ssl.*` is not listed.
_PROCESS_KEYS = (
    INTERNAL_REST_KEY,
    SERVER_NAME_KEY,
    "rest.advertised.host.name",
    "rest.advertised.port",
    "mirrorflow.http.listeners",
    HTTP_CLIENT_AUTH_KEY,
    "metrics.level",
    METRIC_NAMES_KEY,
    "rest.modify.enable",
    "offset.flush.interval.ms",
)
ADDRESSES_KEY = "bootstrap.servers"
_CLIENT_KINDS = ("producer.", "consumer.", "admin.")
_BYTE_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledFlow:
    """A flow that copies *topics*; *keeps_names* if it uses IdentityReplicationPolicy.

    *separator* is that in the names of copies; "" for a custom policy.
    """

    source: str
    target: str
    topics: tuple[str, ...]
    keeps_names: bool
    separator: str = "."

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def has_names_only(self) -> bool:
        """Whether its topics are all names, none of them an expression."""
        return all(map(_LITERAL.fullmatch, self.topics))


def flow_warnings(flows: Sequence[EnabledFlow]) -> Iterator[str]:
    """Yields a warning for each problem of *flows*, the enabled ones of a file."""
    if not flows:
        yield "No flow is enabled, so only heartbeats are written; set A->B.enabled=true to copy topics of A to B."
    for flow in flows:
        if not flow.topics:
            yield f"{flow.name}.topics is empty, so the flow copies no topic; leave it out to copy all."
    keeping = [flow for flow in flows if flow.keeps_names]
    loops = (loop for sharing in _sharing_a_topic(keeping) for loop in _loops(sharing))
    for loop in dict.fromkeys(loops):
        names = [flow.name for flow in loop]
        selectors = "both" if len(names) == 2 else "all of them"
        yield (
            f"{', '.join(names[:-1])} and {names[-1]} keep the names of topics (IdentityReplicationPolicy), so records of a topic "
            f"that {selectors} select are copied in an endless loop; let them select different topics, or use DefaultReplicationPolicy."
        )


def check_aliases(flows: Sequence[EnabledFlow]) -> None:
    """Raises InvalidSettingError if copies would be copied again and again, because of a separator in an alias."""
    growing: dict[str, list[EnabledFlow]] = {}
    for flow in flows:
        # A flow that selects names only does not select ever longer ones.
        if not flow.keeps_names and not flow.has_names_only:
            growing.setdefault(flow.source, []).append(flow)
    for flow in (flow for of_source in growing.values() for flow in of_source):
        if is_alias_split(flow.source, flow.separator) and (loop := _shortest_loop(flow, growing)):
            raise InvalidSettingError(
                key="clusters",
                problem=f"the alias {flow.source} {alias_split_problem(flow.separator)}, so "
                f"{' and '.join(flow.name for flow in loop)} would copy their own copies without end",
                action="choose another alias, or another replication.policy.separator",
            )


def _sharing_a_topic(flows: Sequence[EnabledFlow]) -> Iterable[tuple[EnabledFlow, ...]]:
    """Groups flows that may select the same topic: one group per name, and one of flows with expressions.

    It does not decide whether two expressions have a topic in common: they may.
    """
    expressions = {flow: compile_patterns("topics", flow.topics) for flow in flows}
    groups = {tuple(flow for flow in flows if not flow.has_names_only): None}
    for name in dict.fromkeys(name for flow in flows if flow.has_names_only for name in flow.topics):
        selecting = (
            flow for flow, expression in expressions.items() if expression and _may_match(expression, name)
        )
        groups[tuple(selecting)] = None
    return groups


def _may_match(expression: SettingPattern, name: str) -> bool:
    try:
        return expression.matches(name)
    except InvalidSettingError:
        return True  # the match takes too long; the connector reports that, here it only means "may match"


def _loops(flows: Sequence[EnabledFlow]) -> Iterator[tuple[EnabledFlow, ...]]:
    """Yields for each of *flows* its shortest loop, beginning with the first flow in the file's order."""
    by_source: dict[str, list[EnabledFlow]] = {}
    for flow in flows:
        by_source.setdefault(flow.source, []).append(flow)
    for flow in flows:
        loop = _shortest_loop(flow, by_source)
        if loop:
            first = loop.index(min(loop, key=flows.index))
            yield loop[first:] + loop[:first]


def _shortest_loop(flow: EnabledFlow, by_source: dict[str, list[EnabledFlow]]) -> tuple[EnabledFlow, ...]:
    """Returns *flow* and the fewest flows that lead from its target back to its source; empty if none do."""
    waiting: deque[tuple[EnabledFlow, ...]] = deque([(flow,)])
    seen = {flow.target}
    while waiting:
        path = waiting.popleft()
        if path[-1].target == flow.source:
            return path
        for onward in by_source.get(path[-1].target, ()):
            if onward.target not in seen:
                seen.add(onward.target)
                waiting.append((*path, onward))
    return ()


def load_mm2(
    text: str, clusters: Sequence[str] | None = None, *, now_ms: int | None = None
) -> tuple[WorkerSettings, ...]:
    """Returns the herders of an mm2.properties, in the order of `clusters`.

    *clusters* keeps only those that write to one of these. All herders run in one process: `http` is the same
    in each. Raises InvalidSettingError and RefusedSettingError, and UnresolvedReferenceError for an address.
    """
    warnings: list[str] = []
    raw, aliases = read_mm2(text, warnings)
    _check_keys(raw, aliases, warnings)
    warnings += _plain_secrets(raw)
    wanted = _selected_clusters(aliases, clusters)
    read = PropertyReader(raw, Resolver(raw))
    pairs = [
        (source, target)
        for source in aliases
        for target in aliases
        if source != target and target in wanted and _has_herder(read, source, target)
    ]
    if not pairs:
        raise InvalidSettingError(
            key="clusters",
            problem="no replication flow is enabled",
            action="set A->B.enabled=true for one of them",
        )
    for alias in dict.fromkeys(alias for pair in pairs for alias in pair):
        key = f"{alias}.{ADDRESSES_KEY}"  # named as in the file, which a client does not know
        addresses = raw.get(key, raw.get(ADDRESSES_KEY, ""))
        if not Resolver(raw).resolve_required(key, addresses).strip():
            raise InvalidSettingError(key=key, problem="it is missing", action="write host:port,host:port")
    flows = _enabled(raw, aliases)
    check_aliases(flows)
    warnings += flow_warnings(flows)
    return tuple(_herder(raw, source, target, list(warnings), now_ms) for source, target in pairs)


def _plain_secrets(raw: Mapping[str, str]) -> list[str]:
    """Returns a warning if *raw* has plain-text secrets, which are also written to config topics, as with Java MM2."""
    keys_in_clear = sorted(
        key
        for key, value in raw.items()
        if shown_value(key, value) != value and not key.startswith(("listeners.https.", PROVIDERS_KEY))
    )
    sentence = (
        f"{', '.join(keys_in_clear)}: in plain text, also in the config topics on the targets, as with "
        "Java MM2; write references instead (docs/from-mm2.md)."
    )
    return [sentence] if keys_in_clear else []


def _enabled(raw: Mapping[str, str], aliases: Sequence[str]) -> tuple[EnabledFlow, ...]:
    """Returns the flows of *raw* that copy topics."""
    flows = []
    for source, target in permutations(aliases, 2):
        properties = connector_properties(raw, source, target, SOURCE_CONNECTOR)
        read = PropertyReader(properties, Resolver(properties), DEFAULTS)
        if read.flag("enabled"):
            policy = read.text("replication.policy.class", "DefaultReplicationPolicy")
            separates = policy.removeprefix(MIRROR_PACKAGE) == "DefaultReplicationPolicy"
            flows.append(
                EnabledFlow(
                    source=source,
                    target=target,
                    topics=read.names("topics"),
                    keeps_names=policy.endswith("IdentityReplicationPolicy"),
                    separator=read.text("replication.policy.separator") if separates else "",
                )
            )
    return tuple(flows)


def read_mm2(text: str, warnings: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the properties of an mm2.properties under their proper names, and its aliases.

    Raises InvalidSettingError.
    """
    raw = read_properties(text, warnings)
    read = PropertyReader(raw, Resolver(raw))
    aliases = tuple(dict.fromkeys(read.names("clusters", ())))
    if not aliases:
        raise InvalidSettingError(
            key="clusters", problem="it is missing", action="list the aliases: clusters = A, B"
        )
    return setting_table.canonical(raw, warnings, prefixes=_prefixes(aliases)), aliases


def cluster_properties(raw: Mapping[str, str], alias: str) -> dict[str, str]:
    """Returns one cluster's properties without prefix, with shared ones set for each kind of client."""
    properties = clients.with_prefix(raw, f"{alias}.")
    for key, value in clients.shared(properties).items():
        for kind in _CLIENT_KINDS:
            properties.setdefault(kind + key, value)
    for key, value in clients.shared(raw).items():
        for kind in _CLIENT_KINDS:
            properties.setdefault(kind + key, value)
        properties.setdefault(key, value)
    return properties


def worker_properties(raw: Mapping[str, str], source: str, target: str) -> dict[str, str]:
    """Returns the properties of the Connect worker of flow *source* to *target*."""
    return {
        "client.id": f"{source}->{target}",
        "group.id": f"{source}-mm2",
        "offset.storage.topic": worker_topic("offsets", source),
        "status.storage.topic": worker_topic("status", source),
        "config.storage.topic": worker_topic("configs", source),
        "key.converter": _BYTE_CONVERTER,
        "value.converter": _BYTE_CONVERTER,
        "header.converter": _BYTE_CONVERTER,
        **{
            key: value
            for key, value in raw.items()
            if key in _PROCESS_KEYS or key.startswith("listeners.https.")
        },
        **cluster_properties(raw, target),
        **{key: value for key, value in raw.items() if key.startswith(_WORKER_PREFIXES)},
        **{key: value for key, value in raw.items() if key.startswith(PROVIDERS_KEY)},
    }


def connector_properties(raw: Mapping[str, str], source: str, target: str, connector: str) -> dict[str, str]:
    """Returns the properties of one *connector* of the flow, as MM2 writes them to its config topic."""
    properties = {
        key: value
        for key, value in raw.items()
        if setting_table.is_connector_key(key) or key.startswith((PROVIDERS_KEY, "replication.policy"))
    }
    for side, alias in (("source", source), ("target", target)):
        for key, value in cluster_properties(raw, alias).items():
            prefix = f"{side}." if key.startswith(_CLIENT_KINDS) else f"{side}.cluster."
            properties[prefix + key] = value
    properties.setdefault("name", connector)
    properties.setdefault("connector.class", MIRROR_PACKAGE + connector)
    properties.setdefault("source.cluster.alias", source)
    properties.setdefault("target.cluster.alias", target)
    properties.update(clients.with_prefix(raw, f"{source}->{target}."))
    properties.setdefault("enabled", "false")
    return properties


def _herder(
    raw: Mapping[str, str], source: str, target: str, warnings: list[str], now_ms: int | None
) -> WorkerSettings:
    flow, worker = f"{source}->{target}", worker_properties(raw, source, target)
    connectors = [
        _without_refused(connector_properties(raw, source, target, connector), flow, warnings)
        for connector in _connectors(raw, source, target)
    ]
    herder = worker_settings(flow, worker, connectors, (), warnings, now_ms=now_ms)
    distributed = distributed_settings(
        PropertyReader(worker, Resolver(worker), DEFAULTS),
        worker,
        connectors,
        target_alias=target,
        flow=(source, target),
    )
    read = PropertyReader(raw, Resolver(raw), DEFAULTS)
    serves_others = read.flag(INTERNAL_REST_KEY)
    internal = checked_listeners(read.names("listeners")) if serves_others else ()
    # Our HTTP server has the process's certificate, never the client certificate for a herder's target.
    tls = clients.with_prefix(raw, "listeners.https.") or {
        key: value for key, value in raw.items() if key.startswith("ssl.")
    }
    auth = herder.http.others_client_auth
    if auth is not None and not internal:
        tls, auth = {**tls, "ssl.client.auth": auth}, None  # other nodes call none of the listeners
    http = replace(herder.http, tls=tls, internal=internal, others_client_auth=auth)
    return replace(herder, distributed=distributed, http=http)


def _connectors(raw: Mapping[str, str], source: str, target: str) -> tuple[str, ...]:
    """Returns MM2's connectors, and that of schemas if both clusters have a schema registry."""
    has_registries = all(raw.get(f"{alias}.{REGISTRY_URL_KEY}", "").strip() for alias in (source, target))
    return (*_CONNECTORS, SCHEMA_CONNECTOR) if has_registries else _CONNECTORS


def _without_refused(properties: dict[str, str], flow: str, warnings: list[str]) -> dict[str, str]:
    """Returns *properties*, disabled if MM2 refuses this connector and runs the others."""
    read = PropertyReader(properties, Resolver(properties), DEFAULTS)
    if properties["connector.class"] != MIRROR_PACKAGE + CHECKPOINT_CONNECTOR or not read.flag(
        "enabled", default=True
    ):
        return properties
    problem = checkpoint_refusal(read)
    if problem is None:
        return properties
    warnings.append(f"{flow}.{CHECKPOINT_CONNECTOR} is not run: {problem[0]} is false, and {problem[1]}.")
    return {**properties, "enabled": "false"}


def _has_herder(read: PropertyReader, source: str, target: str) -> bool:
    key = "emit.heartbeats.enabled"
    heartbeats = read.flag(f"{source}->{target}.{key}", default=read.flag(key, default=True))
    return read.flag(f"{source}->{target}.enabled", default=False) or heartbeats


def _selected_clusters(aliases: tuple[str, ...], clusters: Sequence[str] | None) -> set[str]:
    for unknown in sorted(set(clusters or ()) - set(aliases)):
        raise InvalidSettingError(
            key="--clusters",
            problem=f"{unknown!r} is not a cluster of this file",
            action="name one of " + ", ".join(aliases),
        )
    return set(clusters or aliases)


def _prefixes(aliases: tuple[str, ...]) -> tuple[str, ...]:
    flows = [f"{source}->{target}." for source in aliases for target in aliases if source != target]
    return (*flows, *sorted((f"{alias}." for alias in aliases), key=len, reverse=True))


def _check_keys(raw: Mapping[str, str], aliases: tuple[str, ...], warnings: list[str]) -> None:
    prefixes = _prefixes(aliases)
    by_prefix: dict[str, dict[str, str]] = {}
    for key, value in raw.items():
        prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), "")
        flow = re.match(r"(.+?)->(.+?)\.", key)
        if not prefix and flow:
            named = " or ".join(sorted({flow.group(1), flow.group(2)} - set(aliases)))
            warnings.append(
                f"{key}: it has no effect, because `clusters` does not list {named or 'such a flow'}."
            )
            continue
        name = key.removeprefix(prefix)
        if name != "alias" or prefix not in {f"{alias}." for alias in aliases}:
            by_prefix.setdefault(prefix, {})[name] = value
    for prefix, properties in by_prefix.items():
        scopes = (
            setting_table.CONNECTOR_SCOPES
            if "->" in prefix
            else setting_table.CLUSTER_SCOPES
            if prefix
            else setting_table.DRIVER_SCOPES
        )
        setting_table.check(properties, scopes, warnings, prefix=prefix)
    warnings.extend(
        f"{key}: it has no effect at the top level, as in MM2; write it for a flow (A->B.{key}) or a cluster (A.{key})."
        for key in by_prefix.get("", {})
        if not _has_effect(key)
    )


def _has_effect(key: str) -> bool:
    """Whether a top-level key that we honour reaches a worker or a connector."""
    row = setting_table.find(key, setting_table.DRIVER_SCOPES)
    if row is None or row.verdict is not Verdict.HONOURED or row.scope in {Scope.DRIVER, Scope.REST}:
        return True
    prefixes = (*_WORKER_PREFIXES, PROVIDERS_KEY)
    return (
        key in _PROCESS_KEYS
        or key.startswith(prefixes)
        or setting_table.is_connector_key(key)
        or clients.is_shared(key)
    )
