"""The curated part of a connector's pod that may be changed."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mirrorflow_operator.api.model import (
    LIST_MAX,
    LIST_SET,
    PROPERTIES_MAX,
    TEXT_MAX,
    ApiModel,
    LabelName,
    ObjectName,
    list_map,
)

LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?)?$")]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=PROPERTIES_MAX)]
Annotations = Annotated[
    dict[LabelName, Annotated[str, Field(max_length=TEXT_MAX)]], Field(max_length=PROPERTIES_MAX)
]
# As Kubernetes defines them; its API server checks what is inside.
Preserved = Annotated[
    dict[str, Any],
    Field(max_length=LIST_MAX, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
]


class EnvironmentVariable(ApiModel):
    """A variable of the container, with a plain value."""

    name: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="Its name."
    )
    value: Annotated[str, Field(max_length=TEXT_MAX)] = Field("", description="Its value.")


class Toleration(ApiModel):
    """A taint the pod bears."""

    key: LabelName | None = Field(None, description="Of the taint; absent: every key.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Exists or Equal.")
    value: LabelValue | None = Field(None, description="Of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Absent: every effect."
    )
    toleration_seconds: int | None = Field(
        None, ge=0, le=86_400 * 365, description="How long, with NoExecute."
    )


class TopologySpread(ApiModel):
    """How the pods of a connector are spread; their own labels are selected."""

    topology_key: LabelName = Field(description="The node label to spread by.")
    max_skew: int = Field(1, ge=1, le=1_000, description="The difference that is borne.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        "ScheduleAnyway", description="DoNotSchedule or ScheduleAnyway."
    )


class Template(ApiModel):
    """The part of the pod that may be changed. Pods fix no user id."""

    labels: Labels = Field(default_factory=dict, description="Further labels.")
    annotations: Annotations = Field(default_factory=dict, description="Further annotations.")
    node_selector: Labels = Field(default_factory=dict, description="Labels that the node must have.")
    tolerations: tuple[Toleration, ...] = Field((), max_length=LIST_MAX, description="Taints the pod bears.")
    affinity: Preserved = Field(default_factory=dict, description="Kubernetes' own affinity.")
    topology_spread: tuple[TopologySpread, ...] = Field(
        (), max_length=10, description="How pods are spread.", json_schema_extra=list_map("topologyKey")
    )
    priority_class_name: ObjectName | None = Field(None, description="The pod's PriorityClass.")
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        (), max_length=10, description="Names of Secrets.", json_schema_extra=LIST_SET
    )
    env: tuple[EnvironmentVariable, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Variables of the container.",
        json_schema_extra=list_map("name"),
    )
    termination_grace_period_seconds: int = Field(
        30, ge=1, le=3_600, description="How long the connector may take to finish what is in flight."
    )
