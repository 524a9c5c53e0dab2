"""What a conversion passes on: a Java flow taken apart, what it needs besides, and what could not be said.

Both readers (`from_mm2`, `from_strimzi`) end in a `JavaFlow`; `convert_flow` begins with one. No value here is a secret: a
password has become the name of a Secret before it gets here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SOURCE, CHECKPOINT, HEARTBEAT = "source", "checkpoint", "heartbeat"
# Where `${dir:...}` finds a Secret in a pod; on a laptop `type: Custom` needs the path that --secrets names.
SECRETS_MOUNT = "/mnt/mirrorflow/secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A setting without a counterpart; `refused` ones would make the copy another one than was asked for."""

    flow: str  # A->B; "" for the whole file
    setting: str
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NeededSecret:
    """A key of a Secret (a file for `mirrorflow run --secrets`) that a converted flow names."""

    secret: str
    key: str
    origin: str  # where its content is now, never what it is


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaCluster:
    """One side. `document` is spec.source or spec.target but for `config`; `clients` are consumer.*, producer.*, admin.*."""

    document: Mapping[str, Any]
    clients: Mapping[str, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """Its name in topics and positions."""
        return str(self.document["alias"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFlow:
    """A flow as Java runs it: `worker` and `connectors` are Connect's properties without the connections.

    A connector that does not run is absent. `claim` is who a replicator of ours would be on the target, "" if nobody yet.
    """

    source: JavaCluster
    target: JavaCluster
    worker: Mapping[str, str]
    connectors: Mapping[str, Mapping[str, str]]
    emit_to: Sequence[str]  # Target, Source
    state: str = "Running"
    claim: str = ""

    @property
    def name(self) -> str:
        """As MM2 names it."""
        return f"{self.source.alias}->{self.target.alias}"


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a conversion has to say besides its documents."""

    losses: list[Loss] = field(default_factory=list)
    secrets: set[NeededSecret] = field(default_factory=set)

    def lose(self, flow: str, setting: str, why: str, *, refused: bool = False) -> None:
        """Note a setting without a counterpart, once."""
        loss = Loss(flow=flow, setting=setting, why=why.rstrip("."), refused=refused)
        if loss not in self.losses:
            self.losses.append(loss)

    def need(self, secret: str, key: str, origin: str) -> dict[str, str]:
        """The reference to a Secret's key that has to be created."""
        self.secrets.add(NeededSecret(secret=secret, key=key, origin=origin))
        return {"secretName": secret, "key": key}
