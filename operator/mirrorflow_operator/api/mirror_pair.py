"""Defines MirrorPair: two flows in opposite directions between which producers are switched, and how that is done.

The command reads a pair from one file with three documents: the pair and its two MirrorFlows (`load_pair`). In Kubernetes they are
three objects of one namespace. `pair_problems` finds flows that do not mirror each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.transforms import Transforms, read_transforms
from mirrorflow_operator.api.authentication import Authentication
from mirrorflow_operator.api.load import field_errors, parse_flow, read_documents, validated
from mirrorflow_operator.api.model import (
    LIST_MAX,
    LIST_SET,
    PATTERNS_MAX,
    Alias,
    ApiModel,
    DataKey,
    ObjectName,
    Pattern,
    list_map,
)
from mirrorflow_operator.api.rules.pair_rules import PAIR_RULES, check_object
from mirrorflow_operator.api.rules.table import check_authentication
from mirrorflow_operator.api.spec import API_VERSION, FlowMetadata, MirrorFlow, NamingPolicy, SyncMode
from mirrorflow_operator.api.workloads import (
    VOLUMES_MAX,
    EnvironmentVariable,
    ImageName,
    Labels,
    PodSecurityContext,
    Resources,
)
from mirrorflow_operator.errors import FieldError, InvalidSpecError

PAIR_KIND = "MirrorPair"
PORTS_MAX = 16
PEERS_MAX = 16
SETTLE_MAX_S = 8  # an unplanned switchover gives a source that answers 10 s to be fenced
DAY_S = 86_400
YEAR_S = 365 * DAY_S
Principal = Annotated[str, Field(min_length=3, max_length=512, pattern=r"^[^:\s]+:.+$")]
ShortText = Annotated[str, Field(min_length=1, max_length=2_048)]
HostName = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]  # RFC 1123, as Kubernetes wants an externalName


class FenceMethod(Enum):
    """What keeps producers from writing to the side that is left."""

    DENY_ACL = "DenyAcl"
    NETWORK_POLICY = "NetworkPolicy"
    HOOK = "Hook"
    NONE = "None"


class HookJobTemplate(ApiModel):
    """A Job of Kubernetes with one container, in the namespace of the pair. It is unprivileged, and its root file system is read-only."""

    image: ImageName = Field(description="Container image; its repository is allowed by admission.workloads.")
    command: tuple[ShortText, ...] = Field(
        (), max_length=LIST_MAX, description="Entry point. If empty, that of the image."
    )
    args: tuple[ShortText, ...] = Field(
        (), max_length=LIST_MAX, description="Arguments. If command is empty too, those of the image."
    )
    env: tuple[EnvironmentVariable, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Environment variables, besides those that every hook has.",
        json_schema_extra=list_map("name"),
    )
    secrets: tuple[ObjectName, ...] = Field(
        (),
        max_length=VOLUMES_MAX,
        description="Secrets that are mounted below /mnt/mirrorflow/secrets, each in a folder of its name.",
        json_schema_extra=LIST_SET,
    )
    service_account_name: ObjectName | None = Field(
        None,
        description="ServiceAccount with whose token it runs, which the chart's value switchovers.hooks lists. If absent, it has no token.",
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        (), max_length=LIST_MAX, description="Secrets to pull the image.", json_schema_extra=LIST_SET
    )
    security_context: PodSecurityContext = Field(
        default_factory=PodSecurityContext, description="User and group ids; not 0."
    )
    resources: Resources = Field(default_factory=Resources, description="Compute resources.")


class Hook(ApiModel):
    """A command or a Job that changes something which MirrorFlow does not know, such as a gateway or a DNS name: one of both."""

    command: tuple[ShortText, ...] | None = Field(
        None,
        min_length=1,
        max_length=LIST_MAX,
        description="Program and arguments, run without a shell. MIRRORFLOW_ACTION, MIRRORFLOW_PAIR, MIRRORFLOW_FROM and MIRRORFLOW_TO "
        "are in its environment; for fence and lift also MIRRORFLOW_MEMBER, the cluster that is meant. It may be run again with the same "
        "action, and must succeed then.",
    )
    job: HookJobTemplate | None = Field(
        None,
        description="Job that a Switchover in Kubernetes runs instead of a command, with the same environment and promises.",
    )
    timeout_seconds: int = Field(
        60, ge=1, le=3_600, description="Time after which it is stopped and has failed."
    )


class FencePeer(ApiModel):
    """Who may still connect to fenced brokers: pods and namespaces by their labels, or addresses."""

    pod_labels: Labels | None = Field(
        None, description="Labels of pods. If absent, all pods of the namespaces."
    )
    namespace_labels: Labels | None = Field(
        None, description="Labels of namespaces. If absent, the namespace of the pair."
    )
    cidr: Annotated[str, Field(max_length=43, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")] | None = Field(
        None, description="Range of addresses, such as 10.0.0.0/16."
    )


class NetworkFence(ApiModel):
    """Brokers of both members in the namespace of the pair, which a NetworkPolicy of the operator closes to applications."""

    brokers: dict[Alias, Annotated[Labels, Field(min_length=1)]] = Field(
        min_length=2, max_length=2, description="Labels of the broker pods, by member."
    )
    ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = Field(
        min_length=1,
        max_length=PORTS_MAX,
        description="Ports of the brokers' pods that applications use. All others stay open.",
    )
    allowed: tuple[FencePeer, ...] = Field(
        (),
        max_length=PEERS_MAX,
        description="Who may still use these ports, besides the brokers, the flows of the pair and its Switchovers.",
    )
    settle_seconds: int = Field(
        5,
        ge=0,
        le=SETTLE_MAX_S,
        description="Time in which the network plugin enforces a changed policy.",
    )


class PairFence(ApiModel):
    """How producers are kept from writing."""

    method: FenceMethod = Field(description="DenyAcl, NetworkPolicy, Hook or None.")
    except_principals: tuple[Principal, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Principals that may still write, for method DenyAcl, such as that of the flow back. If empty, everybody but super "
        "users is denied.",
    )
    hook: Hook | None = Field(
        None, description="Command or Job for method Hook; its action is fence or lift."
    )
    network_policy: NetworkFence | None = Field(
        None,
        description="Brokers and ports for method NetworkPolicy, which a Switchover in Kubernetes closes.",
    )


class Member(ApiModel):
    """One cluster of the pair, by the alias that both flows give it."""

    flow: ObjectName = Field(
        description="Name of the flow that runs while this cluster is active; the cluster is its source."
    )
    probe: Authentication | None = Field(
        None,
        description="Identity with which the fence is tried on a canary topic; one without the rights of a super user. If absent, that of "
        "the flow.",
    )


class PairGroups(ApiModel):
    """Consumer groups that follow their topics."""

    include: tuple[Pattern, ...] = Field(
        (".*",), max_length=PATTERNS_MAX, description="Names or regexes of groups. If absent, all."
    )
    exclude: tuple[Pattern, ...] = Field(
        (), max_length=PATTERNS_MAX, description="Names or regexes of groups to exclude."
    )


class EndpointService(ApiModel):
    """A Service of type ExternalName that applications connect to."""

    name: ObjectName = Field(description="Name of the Service, in the namespace of the pair.")
    external_names: dict[Alias, HostName] = Field(
        min_length=2,
        max_length=2,
        description="DNS name of each member, by its alias: the externalName while that member is active.",
    )


class EndpointConfigMap(ApiModel):
    """A key of a ConfigMap from which applications take their bootstrap servers."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the namespace of the pair.")
    key: DataKey = Field(description="Key whose value is switched.")
    values: dict[Alias, ShortText] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="Value for each member, by its alias. If absent, the bootstrapServers of that member.",
    )


class PairEndpoint(ApiModel):
    """What applications connect to: one of hook, service and configMap."""

    hook: Hook | None = Field(
        None, description="Command or Job that switches the endpoint; its action is promote."
    )
    service: EndpointService | None = Field(
        None, description="Service of type ExternalName that a Switchover in Kubernetes switches."
    )
    config_map: EndpointConfigMap | None = Field(
        None, description="Key of a ConfigMap that a Switchover in Kubernetes switches."
    )


class Readiness(ApiModel):
    """When a switchover may begin."""

    max_lag_seconds: int = Field(
        5, ge=0, le=DAY_S, description="Lag of the flow above which a switchover does not begin."
    )
    verified_within_seconds: int | None = Field(
        None,
        ge=1,
        le=YEAR_S,
        description="Time within which a verification of the flow must have ended that found both clusters equal. If absent, none is required.",
    )


class PairSpec(ApiModel):
    """Everything that a user decides about a pair."""

    members: dict[Alias, Member] = Field(
        min_length=2, max_length=2, description="The two clusters by their aliases."
    )
    fence: PairFence = Field(description="How producers are kept from writing.")
    groups: PairGroups = Field(
        default_factory=PairGroups, description="Consumer groups that follow their topics."
    )
    endpoint: PairEndpoint | None = Field(
        None, description="What applications connect to. If absent, they are moved by other means."
    )
    readiness: Readiness = Field(default_factory=Readiness, description="When a switchover may begin.")
    deadline_seconds: int = Field(
        60,
        ge=1,
        le=DAY_S,
        description="Time for which writes may be refused before the switchover is rolled back.",
    )


class MirrorPair(ApiModel):
    """The whole resource."""

    api_version: Literal["mirrorflow.io/v1alpha1"] = Field(description=API_VERSION)
    kind: Literal["MirrorPair"] = Field(description=PAIR_KIND)
    metadata: FlowMetadata = Field(description="Name and namespace.")
    spec: PairSpec = Field(description="What a user decides.")
    status: dict[str, Any] = Field(
        default_factory=dict, description="Observed state, written by the operator; not read here."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A valid pair and its flows by the member that is active while they run."""

    pair: MirrorPair
    flows: Mapping[str, MirrorFlow]


def load_pair(text: str) -> LoadedPair:
    """Returns the pair and the flows in *text*, which mirror each other. Raises InvalidSpecError with all errors."""
    documents = read_documents(text)
    pairs = [document for document in documents if document.get("kind") == PAIR_KIND]
    if len(pairs) != 1:
        problem = f"it contains {len(pairs)} objects of kind {PAIR_KIND}"
        raise _error("the file", problem, f"write one {PAIR_KIND} and its two MirrorFlows into it")
    pair = parse_pair(pairs[0])
    flows = _flows([document for document in documents if document is not pairs[0]])
    if errors := pair_problems(
        pair, flows, where="the file", cure="add it as another document, after a line ---"
    ):
        raise InvalidSpecError(errors)
    return LoadedPair(pair=pair, flows=flows_by_member(pair, flows))


def parse_pair(document: Mapping[str, Any]) -> MirrorPair:
    """Returns the pair in a parsed document. Raises InvalidSpecError with all errors of its fields."""
    try:
        pair = validated(document, MirrorPair)
    except ValidationError as error:
        raise InvalidSpecError(field_errors(error, MirrorPair)) from error
    errors = check_object(pair, PAIR_RULES)
    for alias, member in pair.spec.members.items():
        if member.probe is not None:
            errors += check_authentication(member.probe, f"spec.members.{alias}.probe")
    if errors:
        raise InvalidSpecError(errors)
    return pair


def flows_by_member(pair: MirrorPair, flows: Mapping[str, MirrorFlow]) -> dict[str, MirrorFlow]:
    """Returns the flows of *pair* by the member that is active while they run; *flows* has all of them by name."""
    return {alias: flows[member.flow] for alias, member in pair.spec.members.items()}


def pair_problems(
    pair: MirrorPair, flows: Mapping[str, MirrorFlow], *, where: str, cure: str
) -> list[FieldError]:
    """Returns why the *flows*, by name, are not two ways between the members of *pair*; none if they are.

    *where* is what has the flows, *cure* what to do if one is missing.
    """
    if errors := [*_member_errors(pair, flows, where, cure)]:
        return errors
    return [*_mirror_errors(flows_by_member(pair, flows))]


def _flows(documents: list[Mapping[str, Any]]) -> dict[str, MirrorFlow]:
    flows: dict[str, MirrorFlow] = {}
    for document in documents:
        flow = parse_flow(document)
        if flow.metadata.name in flows:
            problem = f"it contains two flows named {flow.metadata.name}"
            raise _error("the file", problem, "give each its own metadata.name")
        flows[flow.metadata.name] = flow
    return flows


def _error(path: str, message: str, action: str) -> InvalidSpecError:
    return InvalidSpecError([FieldError(path=path, message=message, action=action)])


def _member_errors(
    pair: MirrorPair, flows: Mapping[str, MirrorFlow], where: str, cure: str
) -> Iterator[FieldError]:
    for alias, member in pair.spec.members.items():
        path = f"spec.members.{alias}.flow"
        flow = flows.get(member.flow)
        if flow is None:
            known = ", ".join(sorted(flows)) or "none"
            yield FieldError(
                path=path,
                message=f"{where} has no MirrorFlow named {member.flow} (it has {known})",
                action=cure,
            )
        elif flow.spec.source.alias != alias:
            yield FieldError(
                path=path,
                message=f"flow {member.flow} reads from {flow.spec.source.alias}, and runs while {alias} is active",
                action=f"name the flow whose spec.source.alias is {alias}",
            )


def _mirror_errors(flows: Mapping[str, MirrorFlow]) -> Iterator[FieldError]:
    """Yields what keeps two flows from being each other's way back; *flows* by the alias of their source."""
    (first, forward), (second, back) = flows.items()
    for alias, flow in flows.items():
        yield from _flow_errors(flow, target=second if alias == first else first)
    for side, one_way, other in (
        (first, forward.spec.source, back.spec.target),
        (second, forward.spec.target, back.spec.source),
    ):
        if set(one_way.bootstrap_servers) != set(other.bootstrap_servers):
            yield FieldError(
                path=f"spec of {back.metadata.name}",
                message=f"its bootstrapServers of {side} differ from those of {forward.metadata.name}",
                action="write the same addresses, so that both flows surely mean one cluster",
            )
    for name in ("include", "exclude"):
        if set(getattr(forward.spec.topics, name)) != set(getattr(back.spec.topics, name)):
            yield FieldError(
                path=f"spec.topics.{name} of {back.metadata.name}",
                message=f"it differs from that of {forward.metadata.name}",
                action="write the same topics, because each of them is copied back under its name",
            )


def _renames(config: Mapping[str, str]) -> bool:
    """Returns whether the transforms of *config* rename topics; False if they are invalid, which is an error of the flow."""
    try:
        return Transforms(read_transforms(PropertyReader(config))).renames
    except SettingError:
        return False


def _flow_errors(flow: MirrorFlow, *, target: str) -> Iterator[FieldError]:
    name, spec = flow.metadata.name, flow.spec
    if spec.target.alias != target:
        yield FieldError(
            path=f"spec.target.alias of {name}",
            message=f"it is {spec.target.alias}, which is not the other member",
            action=f"write {target}",
        )
    if spec.topics.naming.policy is not NamingPolicy.IDENTITY:
        yield FieldError(
            path=f"spec.topics.naming.policy of {name}",
            message=f"it is {spec.topics.naming.policy.value}, and applications look for the same topics on both clusters",
            action="set it to Identity in a new pair of flows, or change the topics' names in all applications and switch by hand",
        )
    if _renames(spec.connectors.source.config):
        yield FieldError(
            path=f"spec.connectors.source.config of {name}",
            message="its transforms rename topics, and applications look for the same topics on both clusters",
            action="remove each RegexRouter, or change the topics' names in all applications and switch by hand",
        )
    if spec.topics.acls.sync is SyncMode.APPLY:
        # MM2's rule copies every DENY, so the copy would be fenced with its source (mirrorflow_core.topics.topic_acls).
        yield FieldError(
            path=f"spec.topics.acls.sync of {name}",
            message="Apply would copy the fence to the other cluster",
            action="set it to Report or Off, and keep the ACLs of both clusters yourself",
        )
