"""Defines the settings of a switchover in one direction, and connects to its clusters."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_core.settings import CheckpointSettings, ClientSettings, SourceSettings
from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_core.switchover.record import SwitchoverLimits
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.switchover.hooks import SwitchoverHook

# A switchover reads the metadata of each cluster some seventy times within two seconds, each time because it must not be older than what
# is read next. Writes are refused meanwhile, so none of them waits.
REFRESHES_AT_ONCE: Final = 200


class FenceKind(Enum):
    """What keeps producers from writing."""

    DENY_ACL = "DenyAcl"
    NETWORK_POLICY = "NetworkPolicy"
    HOOK = "Hook"
    NONE = "None"  # the user stops all producers


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointObject:
    """An object of Kubernetes that leads clients: a Service of type ExternalName, or a key of a ConfigMap."""

    kind: str  # Service or ConfigMap
    namespace: str
    name: str
    key: str  # of a ConfigMap; "" for a Service
    values: Mapping[str, str]  # by the member that clients are led to

    @property
    def title(self) -> str:
        """Returns kind, namespace and name, for messages."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverSettings:
    """A switchover from *forward*'s source to its target, after which *back* copies the other way."""

    pair: str
    forward: SourceSettings
    forward_groups: CheckpointSettings | None  # None: no group follows
    back: SourceSettings
    fence: FenceKind
    except_principals: tuple[str, ...] = ()
    fence_hook: SwitchoverHook | None = None  # for HOOK, and for NETWORK_POLICY what changes the policies
    endpoint_hook: SwitchoverHook | None = None
    endpoint_object: EndpointObject | None = None
    probe: ClientSettings | None = None  # writes the canary topic of the source; None: as the flow back
    target_probe: ClientSettings | None = None  # reads on the target as an application, in a rehearsal
    max_lag_ms: int = 5_000
    verified_within_ms: int | None = None  # None: no verification is required
    last_verification: LastVerification | None = None  # of the forward flow; None: not known
    verification_source: str = "the status of the flow has no such verdict"  # why none is known
    limits: SwitchoverLimits

    @property
    def source(self) -> str:
        """The alias of the member that is left."""
        return self.forward.source_alias

    @property
    def to(self) -> str:
        """The alias of the member that applications move to."""
        return self.forward.target_alias

    @property
    def variables(self) -> dict[str, str]:
        """The environment of hooks."""
        return {"MIRRORFLOW_PAIR": self.pair, "MIRRORFLOW_FROM": self.source, "MIRRORFLOW_TO": self.to}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairClusters:
    """A client of each cluster: each is that of the flow which writes to the cluster."""

    source: Cluster
    target: Cluster
    probe: Cluster  # of the source; writes the canary topic


@contextlib.asynccontextmanager
async def pair_clusters(settings: SwitchoverSettings) -> AsyncIterator[PairClusters]:
    """Connects to both clusters, and closes the connections afterwards. Raises SettingError, ClusterError."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(client: ClientSettings, flow: SourceSettings) -> Cluster:
            cluster = await Cluster.connect(
                client,
                resolve=Resolver(flow.providers).resolve_client,
                refreshes_at_once=REFRESHES_AT_ONCE,
            )
            stack.push_async_callback(cluster.close)
            return cluster

        source = await connect(settings.back.target_admin, settings.back)
        target = await connect(settings.forward.target_admin, settings.forward)
        probe = await connect(settings.probe or settings.back.target_producer, settings.forward)
        yield PairClusters(source=source, target=target, probe=probe)
