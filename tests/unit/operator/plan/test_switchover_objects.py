"""The objects of a Switchover's Job; `MIRRORFLOW_REWRITE_GOLDENS=1` rewrites the golden file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_operator.api.mirror_pair import MirrorPair
from mirrorflow_operator.api.switchover import Switchover
from mirrorflow_operator.plan.switchover_objects import FlowOfPair, switchover_objects
from tests.harness.goldens import check_golden, yaml_text
from tests.unit.operator.pairs import flow, mirror_pair, switchover

GOLDEN = Path(__file__).parent / "golden" / "switchover.objects.yaml"
SECRET = {"secretName": "mirror", "key": "password"}
LOGIN = {"type": "ScramSha512", "username": {"value": "mirror"}, "password": SECRET}
PROBE = {"type": "ScramSha512", "username": {"value": "probe"}, "password": {**SECRET, "secretName": "probe"}}


def flows(**spec: Any) -> dict[str, FlowOfPair]:
    given = {alias: flow(alias, other, **spec) for alias, other in (("east", "west"), ("west", "east"))}
    return {
        alias: FlowOfPair(flow=item, flow_id=f"{item.metadata.name}.kafka", version="0.1.0")
        for alias, item in given.items()
    }


def objects(
    pair: MirrorPair | None = None, wanted: Switchover | None = None, **spec: Any
) -> list[dict[str, Any]]:
    return switchover_objects(
        wanted or switchover(),
        pair or mirror_pair(),
        flows(**spec),
        image="mirrorflow/replicator",
        begin_until_ms=1_796_000_300_000,
        operator_namespace="mirrorflow",
    )


def with_login(alias: str) -> dict[str, Any]:
    return {"alias": alias, "bootstrapServers": [f"kafka-{alias}:9092"], "authentication": LOGIN}


def pod(planned: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = planned[-1]["spec"]["template"]["spec"]
    return spec


def test_the_objects_of_a_switchover_are_those_of_the_golden_file():
    check_golden(GOLDEN, yaml_text(objects()))


def request(planned: list[dict[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(planned[0]["data"]["switchover.json"])
    return value


def test_only_a_job_that_switches_an_endpoint_gets_a_token():
    """A Role of the chart limits it to that object; the connectors of the same ServiceAccount get none."""
    names = {"east": "kafka.east.example.com", "west": "kafka.west.example.com"}
    with_service = objects(mirror_pair(endpoint={"service": {"name": "kafka", "externalNames": names}}))
    with_key = objects(mirror_pair(endpoint={"configMap": {"name": "kafka", "key": "servers"}}))
    with_hook = objects(mirror_pair(endpoint={"hook": {"command": ["lead"]}}))

    assert [True, True, False, False] == [
        pod(planned)["automountServiceAccountToken"]
        for planned in (with_service, with_key, with_hook, objects())
    ]
    assert {
        "kind": "Service",
        "namespace": "kafka",
        "name": "kafka",
        "key": "",
        "values": names,
    } == request(with_service)["endpoint"]
    assert {
        "kind": "ConfigMap",
        "namespace": "kafka",
        "name": "kafka",
        "key": "servers",
        "values": {"east": "kafka-east:9092", "west": "kafka-west:9092"},
    } == request(with_key)["endpoint"]
    assert request(with_hook)["endpoint"] is None


def test_the_objects_of_a_switchover_have_no_owner():
    """Kubernetes deletes owned objects with their owner. A Job must not end because its Switchover was deleted."""
    assert [] == [item["metadata"]["name"] for item in objects() if "ownerReferences" in item["metadata"]]


def test_the_files_refer_to_secrets_and_the_pod_mounts_them():
    pair = mirror_pair(
        members={"east": {"flow": "east-to-west", "probe": PROBE}, "west": {"flow": "west-to-east"}}
    )
    planned = switchover_objects(
        switchover(),
        pair,
        {
            "east": FlowOfPair(
                flow=flow("east", "west", source=with_login("east")), flow_id="a", version="1"
            ),
            "west": FlowOfPair(
                flow=flow("west", "east", target=with_login("east")), flow_id="b", version="1"
            ),
        },
        image="replicator",
        begin_until_ms=1,
    )

    text = "".join(planned[0]["data"].values())
    mounted = [item["secret"]["secretName"] for item in pod(planned)["volumes"] if "secret" in item]

    assert "${dir:/mnt/mirrorflow/secrets/mirror:password}" in text
    assert "${dir:/mnt/mirrorflow/secrets/probe:password}" in planned[0]["data"]["probe-source.properties"]
    assert ["mirror", "probe"] == mounted


def test_the_pod_has_no_token_and_is_restricted():
    spec = pod(objects())

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert "east-to-west" == spec["serviceAccountName"]


def test_the_pod_has_the_template_of_the_source_connector_of_the_forward_flow():
    """The template has what a connection to both clusters needs, such as labels for network policies."""
    connectors = {
        "source": {
            "image": "example/replicator:2",
            "template": {"nodeSelector": {"zone": "a"}, "labels": {"may-reach": "kafka"}},
        }
    }
    planned = objects(connectors=connectors)

    assert {"zone": "a"} == pod(planned)["nodeSelector"]
    assert "example/replicator:2" == pod(planned)["containers"][0]["image"]
    assert "kafka" == planned[-1]["spec"]["template"]["metadata"]["labels"]["may-reach"]


def test_a_switchover_to_the_other_member_exchanges_the_flows():
    files = objects(wanted=switchover(to="east"))[0]["data"]

    assert "source.cluster.alias=west" in files["forward-source.properties"].replace(" ", "")
    assert "source.cluster.alias=east" in files["back-source.properties"].replace(" ", "")


def test_a_flow_that_is_stopped_or_paused_has_the_properties_of_a_running_one():
    assert objects()[0]["data"] == objects(state="Paused")[0]["data"]


def test_a_flow_without_groups_has_no_file_of_groups():
    assert "forward-checkpoint.properties" not in objects(mirror_pair(groups={"include": []}))[0]["data"]


def test_a_request_has_the_last_verification_where_the_pair_requires_one():
    last = LastVerification(run="nightly", ended_ms=1_796_000_000_000, is_equal=True)
    given = {alias: replace(of_pair, verification=last) for alias, of_pair in flows().items()}

    def requested(**readiness: int) -> dict[str, Any]:
        pair = mirror_pair(readiness=readiness)
        return request(
            switchover_objects(switchover(), pair, given, image="mirrorflow/replicator", begin_until_ms=0)
        )

    required = requested(verifiedWithinSeconds=60)
    assert 60_000 == required["verifiedWithinMs"]
    assert {"run": "nightly", "endedMs": 1_796_000_000_000, "isEqual": True} == required["verification"]
    assert "verification" not in requested(maxLagSeconds=5)


def test_a_rehearsal_with_a_canary_has_the_identities_of_both_members():
    """The canary logs in as an application on both sides. Other Switchovers do not mount the Secret of the target's probe."""
    other = {**PROBE, "password": {**SECRET, "secretName": "other-probe"}}
    members = {
        "east": {"flow": "east-to-west", "probe": PROBE},
        "west": {"flow": "west-to-east", "probe": other},
    }
    pair = mirror_pair(members=members)
    rehearsal = objects(pair, switchover(type="Rehearsal", canary={"topic": "orders.canary"}))
    files = rehearsal[0]["data"]
    mounted = [item["secret"]["secretName"] for item in pod(rehearsal)["volumes"] if "secret" in item]

    assert {"topic": "orders.canary", "group": "orders.canary"} == request(rehearsal)["canary"]
    assert 3 == request(rehearsal)["format"]
    assert "kafka-west:9092" in files["target-probe-source.properties"]
    assert "${dir:/mnt/mirrorflow/secrets/other-probe:password}" in files["target-probe-source.properties"]
    assert ["other-probe", "probe"] == sorted(mounted)
    without = objects(pair, switchover(type="Rehearsal"))
    assert "canary" not in request(without)
    assert 2 == request(without)["format"]
    assert "target-probe-source.properties" not in without[0]["data"]
