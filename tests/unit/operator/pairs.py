"""Builds observed pairs, switchovers and reports for the tests of the operator."""

from typing import Any

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.mirror_pair import MirrorPair, parse_pair
from mirrorflow_operator.api.pair_status import PairStatus, SwitchoverStatus
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Condition, ConditionStatus, Status
from mirrorflow_operator.api.switchover import Switchover, parse_switchover
from mirrorflow_operator.status.observation import Resource
from mirrorflow_operator.status.pair_observation import (
    ObservedSwitchoverJob,
    PairFlowProgress,
    PairKey,
    PairObservation,
    PairResource,
    SwitchoverResource,
)
from mirrorflow_operator.status.switchover_reports import SwitchoverReport

NOW_S = 1_796_000_000.0
NAMESPACE = "kafka"
KEY = PairKey(NAMESPACE, "east-west")
SINCE = "2026-11-30T10:00:00.000Z"
API_VERSION = "mirrorflow.io/v1alpha1"


def flow(source: str, target: str, /, **spec: Any) -> MirrorFlow:
    return parse_flow(
        {
            "apiVersion": API_VERSION,
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}", "namespace": NAMESPACE},
            "spec": {
                "source": {"alias": source, "bootstrapServers": [f"kafka-{source}:9092"]},
                "target": {"alias": target, "bootstrapServers": [f"kafka-{target}:9092"]},
                "topics": {"include": ["orders.*"], "naming": {"policy": "Identity"}},
                **spec,
            },
        }
    )


def flow_resource(source: str, target: str, /, *, ready: str = "True", **spec: Any) -> Resource:
    status = Status(
        conditions=(
            Condition(
                type="Ready",
                status=ConditionStatus(ready),
                last_transition_time=SINCE,
                reason="Advancing",
                message="Records are copied.",
            ),
        ),
        flow_id=f"{source}-to-{target}.{NAMESPACE}",
        version="0.1.0",
    )
    return Resource(
        namespace=NAMESPACE,
        name=f"{source}-to-{target}",
        uid=f"uid-{source}",
        generation=1,
        created_s=0.0,
        flow=flow(source, target, **spec),
        status=status,
    )


def mirror_pair(**spec: Any) -> MirrorPair:
    return parse_pair(
        {
            "apiVersion": API_VERSION,
            "kind": "MirrorPair",
            "metadata": {"name": KEY.name, "namespace": NAMESPACE},
            "spec": {
                "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
                "fence": {"method": "DenyAcl", "exceptPrincipals": ["User:mirror"]},
                **spec,
            },
        }
    )


def pair_resource(status: PairStatus | None = None, **spec: Any) -> PairResource:
    return PairResource(
        namespace=NAMESPACE,
        name=KEY.name,
        uid="uid-pair",
        generation=1,
        resource_version="1",
        flows={"east": "east-to-west", "west": "west-to-east"},
        pair=mirror_pair(**spec),
        status=status or PairStatus(),
    )


def switchover(name: str = "move", **spec: Any) -> Switchover:
    return parse_switchover(
        {
            "apiVersion": API_VERSION,
            "kind": "Switchover",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"pair": KEY.name, "to": "west", "type": "Planned", **spec},
        }
    )


def switchover_resource(
    name: str = "move", *, status: SwitchoverStatus | None = None, age_s: float = 1.0, **spec: Any
) -> SwitchoverResource:
    return SwitchoverResource(
        namespace=NAMESPACE,
        name=name,
        uid=f"uid-{name}",
        generation=1,
        resource_version="1",
        pair=KEY.name,
        created_s=NOW_S - age_s,
        switchover=switchover(name, **spec),
        status=status or SwitchoverStatus(),
    )


def job(name: str = "move", report: SwitchoverReport | None = None, **fields: Any) -> ObservedSwitchoverJob:
    given = {"request": "Planned to west", **fields}
    return ObservedSwitchoverJob(
        name=f"{name}-switchover", uid=f"uid-job-{name}", switchover=name, report=report, **given
    )


def report(state: str, name: str = "move", **fields: Any) -> SwitchoverReport:
    return SwitchoverReport(id=f"{KEY.name}/{name}", state=state, since=SINCE, source="east", **fields)


def observation(*switchovers: SwitchoverResource, **fields: Any) -> PairObservation:
    """Returns an observation of a pair whose forward flow runs, and whose reverse flow is Stopped."""
    flows = {
        "east-to-west": flow_resource("east", "west"),
        "west-to-east": flow_resource("west", "east", state="Stopped"),
    }
    given: dict[str, Any] = {
        "key": KEY,
        "now_s": NOW_S,
        "pair": pair_resource(),
        "switchovers": switchovers,
        "flows": flows,
        "progress": {
            "east-to-west": PairFlowProgress(lag_s=0.4, groups=41, read_again_records=7, checkpoint_age_s=6.0)
        },
        **fields,
    }
    return PairObservation(**given)
