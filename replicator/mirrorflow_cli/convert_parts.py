"""Defines the data of a conversion: the Java flow, the Secrets it needs, the settings that are lost.

Both readers (`from_mm2`, `from_strimzi`) return a `JavaFlow`; `convert_flow` converts it. No value here is a
secret: passwords have already become names of Secrets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SOURCE, CHECKPOINT, HEARTBEAT = "source", "checkpoint", "heartbeat"
# Path of a Secret in a pod, for `${dir:...}`. On a laptop `type: Custom` needs the path given with --secrets.
SECRETS_MOUNT = "/mnt/mirrorflow/secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionLoss:
    """A setting without a counterpart.

    It is `refused` if the copy without it would differ from the requested one.
    """

    flow: str  # A->B; "" for the whole file
    setting: str
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NeededSecret:
    """A key of a Secret (a file for `mirrorflow run --secrets`) that a converted flow refers to."""

    secret: str
    key: str
    origin: str  # where its content is now, never the content


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaCluster:
    """One side of a flow.

    `document` is spec.source or spec.target without `config`; `clients` are consumer.*, producer.*, admin.*.
    """

    document: Mapping[str, Any]
    clients: Mapping[str, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """The cluster's name in topic names and stored offsets."""
        return str(self.document["alias"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFlow:
    """A flow as Java runs it.

    `worker` and `connectors` are Connect's properties without the connections; a connector that does not run
    is absent. `claim` is the name by which a MirrorFlow replicator claims the source alias on the target
    (`mirrorflow.flow`); "" if none yet.
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
        """The flow's name in MM2: `A->B`."""
        return f"{self.source.alias}->{self.target.alias}"


@dataclass(slots=True, kw_only=True)
class ConversionFindings:
    """Collects what a conversion reports besides its documents."""

    losses: list[ConversionLoss] = field(default_factory=list)
    secrets: set[NeededSecret] = field(default_factory=set)

    def lose(self, flow: str, setting: str, why: str, *, refused: bool = False) -> None:
        """Records a setting without a counterpart, once."""
        loss = ConversionLoss(flow=flow, setting=setting, why=why.rstrip("."), refused=refused)
        if loss not in self.losses:
            self.losses.append(loss)

    def need(self, secret: str, key: str, origin: str) -> dict[str, str]:
        """Records a Secret key that has to be created, and returns the reference to it."""
        self.secrets.add(NeededSecret(secret=secret, key=key, origin=origin))
        return {"secretName": secret, "key": key}
