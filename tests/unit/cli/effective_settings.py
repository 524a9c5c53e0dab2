"""The effective settings of the flows of an mm2.properties, as their herders read them, in comparable form.

References are resolved and lists are sorted. A certificate is only present or absent, because conversion changes its
file format.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mirrorflow_core.java.jaas import parse_jaas
from mirrorflow_core.settings import ClientSettings, ConnectorSettings
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from mirrorflow_replicator.config.providers import Resolver

STORES = ("ssl.truststore.", "ssl.keystore.", "ssl.key.password")
_PARTS = ("source", "checkpoint", "heartbeat")


def effective(text: str) -> dict[str, Any]:
    """Maps names such as `A->B.source.topics` to values, for every herder.

    A herder that only emits heartbeats has only heartbeat settings.
    """
    values: dict[str, Any] = {}
    for worker in load_mm2(text, now_ms=0):
        resolver = Resolver(worker.providers)
        copies = worker.connectors[0].source is not None
        if copies:
            values[f"{worker.name}.shutdown_s"] = worker.shutdown_s
            values[f"{worker.name}.metrics_level"] = worker.metrics_level
        for connector in worker.connectors if copies else worker.connectors[1:2]:
            values |= {f"{worker.name}.{key}": value for key, value in _settings(connector, resolver).items()}
    return values


def emitting(text: str) -> set[str]:
    """The names, such as `A->B`, of the flows that emit heartbeats."""
    return {
        worker.name
        for worker in load_mm2(text, now_ms=0)
        if worker.connectors[1].properties.get("emit.heartbeats.enabled", "true") == "true"
    }


def _settings(connector: ConnectorSettings, resolver: Resolver) -> dict[str, Any]:
    values: dict[str, Any] = {f"{connector.connector_class}.name": connector.name}
    for part in _PARTS:
        settings = getattr(connector, part, None)
        if settings is not None:
            values |= {f"{part}.{key}": value for key, value in _flat(settings, resolver).items()}
    return values


def _flat(settings: Any, resolver: Resolver) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name == "providers":
            continue
        if isinstance(value, ClientSettings):
            flat[field.name] = _value(value, resolver)
        elif dataclasses.is_dataclass(value):
            flat |= {f"{field.name}.{key}": nested for key, nested in _flat(value, resolver).items()}
        else:
            flat[field.name] = _value(value, resolver)
    return flat


def _value(value: Any, resolver: Resolver) -> Any:
    if isinstance(value, ClientSettings):
        return (value.alias, value.client_id, _client(value.properties, resolver))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _flat(value, resolver)
    if isinstance(value, tuple):
        return sorted((_value(item, resolver) for item in value), key=repr)
    return value


def _client(properties: Mapping[str, str], resolver: Resolver) -> dict[str, Any]:
    resolved: dict[str, Any] = resolver.resolve(
        {k: v for k, v in properties.items() if not k.startswith(STORES)}
    )
    resolved["keystore"] = any(key.startswith("ssl.keystore.") for key in properties)
    resolved["truststore"] = any(key.startswith("ssl.truststore.") for key in properties)
    if "sasl.jaas.config" in resolved:
        module = parse_jaas(resolved["sasl.jaas.config"])
        resolved["sasl.jaas.config"] = (module.class_name, dict(module.options))
    if resolved.get("security.protocol") == "PLAINTEXT":
        del resolved["security.protocol"]
    servers = resolved.get("bootstrap.servers", "")
    resolved["bootstrap.servers"] = [address.strip() for address in servers.split(",")]
    return resolved
