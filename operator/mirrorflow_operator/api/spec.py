"""The MirrorFlow resource, `mirrorflow.io/v1alpha1`: one direction, source to target.

These types say what a field is; `validate` says what fields must be to each other; `load` makes a MirrorFlow from text
and errors that name the field. Nothing here reads a file, a clock or a Secret.
"""

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from mirrorflow_operator.api.cluster import Cluster
from mirrorflow_operator.api.connectors import Connectors
from mirrorflow_operator.api.groups import Groups, Heartbeats, OffsetSyncs
from mirrorflow_operator.api.model import ApiModel, ObjectName
from mirrorflow_operator.api.quantity import Quantity
from mirrorflow_operator.api.runs import Restart, Seed, Verify
from mirrorflow_operator.api.topics import Topics

API_VERSION = "mirrorflow.io/v1alpha1"
KIND = "MirrorFlow"
# Names of children are the flow's name and a suffix; Kubernetes allows 63 letters in all.
NAME_MAX = 40


class State(Enum):
    """What the flow should be doing."""

    RUNNING = "Running"
    PAUSED = "Paused"
    STOPPED = "Stopped"


class IsolationLevel(Enum):
    """Which records are copied."""

    READ_UNCOMMITTED = "ReadUncommitted"
    READ_COMMITTED = "ReadCommitted"


class Limits(ApiModel):
    """What the flow may use."""

    bytes_per_second: Quantity | None = Field(None, description="Bytes read per second, for example 50Mi.")


class RestTls(ApiModel):
    """The certificate of the internal REST server."""

    secret_name: ObjectName = Field(description="A Secret of type kubernetes.io/tls.")


class InternalRest(ApiModel):
    """How the pods of one connector talk to each other; used when it has replicas > 1."""

    tls: RestTls | None = Field(None, description="Absent: no encryption.")


class Spec(ApiModel):
    """What a user wants; written by users only."""

    state: State = Field(
        State.RUNNING, description="Running; Paused (lag is still shown); Stopped (offsets may be altered)."
    )
    source: Cluster = Field(description="Where records come from.")
    target: Cluster = Field(description="Where records go.")
    topics: Topics = Field(default_factory=Topics, description="Which topics, and how.")
    groups: Groups = Field(default_factory=Groups, description="Which consumer groups.")
    isolation_level: IsolationLevel = Field(
        IsolationLevel.READ_UNCOMMITTED,
        description="ReadCommitted leaves out records of aborted transactions.",
    )
    offset_syncs: OffsetSyncs = Field(default_factory=OffsetSyncs, description="MM2's offset-syncs topic.")
    heartbeats: Heartbeats = Field(default_factory=Heartbeats, description="MM2's heartbeats.")
    limits: Limits = Field(default_factory=Limits, description="What the flow may use.")
    version: Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9._-]*$")] = Field(
        "", description="The replicator's version; empty: pinned in status at first use."
    )
    connectors: Connectors = Field(default_factory=Connectors, description="The workload of each connector.")
    internal_rest: InternalRest = Field(
        default_factory=InternalRest, description="Between pods of one connector."
    )
    seed: Seed | None = Field(None, description="Fill the target in bulk.")
    verify: Verify | None = Field(None, description="Compare both sides.")
    restart: Restart = Field(default_factory=Restart, description="Restart the connectors.")


class Metadata(ApiModel):
    """The part of Kubernetes' metadata that planning needs; the rest is the API server's and passed over."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(max_length=NAME_MAX, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="The flow's name."
    )
    namespace: Annotated[str, Field(max_length=63)] = Field("", description="Its namespace.")


class MirrorFlow(ApiModel):
    """The whole resource."""

    api_version: Literal["mirrorflow.io/v1alpha1"] = Field(description=API_VERSION)
    kind: Literal["MirrorFlow"] = Field(description=KIND)
    metadata: Metadata = Field(description="Name and namespace.")
    spec: Spec = Field(description="What a user wants.")
    status: dict[str, Any] = Field(default_factory=dict, description="The operator's; not read here.")
