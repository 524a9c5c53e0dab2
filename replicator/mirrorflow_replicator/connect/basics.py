"""What the properties of every connector say, whatever its class: its name, its flow, its two clusters, its providers.

Each of `source`, `checkpoint` and `heartbeat` begins with these; keys and defaults are MM2's (MirrorConnectorConfig).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mirrorflow_replicator.connect.providers import PROVIDERS_KEY, Resolver
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.patterns import compile_patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Basics:
    """See the module; *read* reads the rest."""

    name: str
    flow: str
    source_alias: str
    target_alias: str
    providers: Mapping[str, str]  # `config.providers` and its keys
    resolver: Resolver  # of these
    read: PropertyReader

    @property
    def label(self) -> str:
        """What the names of MM2's clients begin with."""
        return f"{self.source_alias}->{self.target_alias}|{self.name}"

    @classmethod
    def of(cls, properties: Mapping[str, str], worker: Mapping[str, str]) -> Self:
        """Of a connector in a worker with the derived *worker* properties. Raises InvalidSettingError."""
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
    """A list of expressions; one that is none is refused before anything starts."""
    found = read.names(key, default)
    compile_patterns(key, found)
    return found


def interval_s(read: PropertyReader, prefix: str, default_s: int, *, enabled: bool = True) -> float | None:
    """`prefix.interval.seconds`; None for never: `prefix.enabled=false` (*enabled* if absent) or a negative interval."""
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
