"""Reads what every connector's properties have, whatever its class: name, flow, both clusters, providers.

`source`, `checkpoint` and `heartbeat` each begin with these; keys and defaults are MM2's
(MirrorConnectorConfig).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_replicator.config.clients import label
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver


@dataclass(frozen=True, slots=True, kw_only=True)
class Basics:
    """The common settings of a connector; *read* reads the others."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    providers: Mapping[str, str]  # `config.providers` and its keys
    resolver: Resolver  # of these
    read: PropertyReader

    @property
    def label(self) -> str:
        """The beginning of the names of MM2's clients."""
        return label(self.source_alias, self.target_alias, self.name)

    @classmethod
    def of(cls, properties: Mapping[str, str], worker: Mapping[str, str]) -> Self:
        """Reads the common settings of a connector in a worker with the derived *worker* properties.

        Raises InvalidSettingError.
        """
        providers = {
            key: value
            for text in (worker, properties)
            for key, value in text.items()
            if key.startswith(PROVIDERS_KEY)
        }
        resolver = Resolver(providers)
        read = PropertyReader(properties, resolver)
        name = read.required("name", action="name the connector, for example MirrorSourceConnector")
        source = read.required("source.cluster.alias", action="name the source cluster")
        target = read.text("target.cluster.alias", "target")
        if source == target:
            raise InvalidSettingError(
                key="target.cluster.alias",
                problem=f"source and target are both {source!r}",
                action="name them apart",
            )
        return cls(
            name=name,
            flow=read.text("mirrorflow.flow", f"{source}->{target}"),
            source_alias=source,
            target_alias=target,
            providers=providers,
            resolver=resolver,
            read=read,
        )


def patterns(read: PropertyReader, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a list of expressions.

    Raises InvalidSettingError for an invalid one, before anything starts.
    """
    found = read.names(key, default)
    compile_patterns(key, found)
    return found


def interval_s(read: PropertyReader, prefix: str, default_s: int, *, enabled: bool = True) -> float | None:
    """Returns `prefix.interval.seconds`; None for never.

    Never means `prefix.enabled=false` (*enabled* if absent) or a negative interval. Raises
    InvalidSettingError for 0.
    """
    is_enabled = read.flag(f"{prefix}.enabled", default=enabled)
    key = f"{prefix}.interval.seconds"
    seconds = read.whole(key, default_s, minimum=-(2**31), maximum=2**31)
    # Java's scheduler takes a negative interval as "never".
    if not is_enabled or seconds < 0:
        return None
    if seconds == 0:
        raise InvalidSettingError(
            key=key, problem="0 would never rest", action=f"write 1 or {prefix}.enabled=false"
        )
    return float(seconds)
