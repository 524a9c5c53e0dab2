"""The Kubernetes objects of the connectors of each valid example.

`golden/smallest.objects.yaml` is complete. The other golden files contain the differences from it
(`tests.harness.goldens`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.pod_sharing import CONNECTOR_FILE, POD_IP
from mirrorflow_operator.plan.pod_template import WORKER_FILE
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.rollouts import HASH_ANNOTATION, reasons_to_roll
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_replicator.config.worker_properties import load_distributed
from tests.harness.goldens import check_golden, object_differences, yaml_text

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
GOLDENS = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
FULL = "smallest"
IMAGE = "registry.example/mirrorflow-replicator:1.0.0"


def _objects(flow: MirrorFlow) -> list[Object]:
    return objects(flow, plan(flow, POD_LAYOUT), image=IMAGE)


def _example(name: str) -> MirrorFlow:
    return load_flow((EXAMPLES / f"{name}.yaml").read_text())


def _changed(name: str, **changes: Any) -> MirrorFlow:
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["spec"] |= changes
    return parse_flow(document)


def _deployments(planned: list[Object]) -> Mapping[str, Object]:
    return {item["metadata"]["name"]: item for item in planned if item["kind"] == "Deployment"}


@pytest.mark.parametrize("name", NAMES)
def test_the_objects_are_those_of_the_golden_file(name: str) -> None:
    """The ConfigMaps contain each planned property, and a comment for each note of the plan."""
    flow = _example(name)
    planned = plan(flow, POD_LAYOUT)
    created = objects(flow, planned, image=IMAGE)
    notes = "".join(f"# {note}\n" for note in planned.notes)
    if name == FULL:
        check_golden(GOLDENS / f"{name}.objects.yaml", yaml_text(created) + notes)
    else:
        check_golden(
            GOLDENS / f"{name}.objects.diff", object_differences(_objects(_example(FULL)), created) + notes
        )


@pytest.mark.parametrize("name", NAMES)
def test_pods_meet_the_restricted_pod_security_standard_without_a_fixed_user_id(name: str) -> None:
    """The platform may choose the user id, unless the template of the connector sets it."""
    flow = _example(name)
    for deployment in _deployments(_objects(flow)).values():
        spec = deployment["spec"]["template"]["spec"]
        name = deployment["metadata"]["labels"]["mirrorflow.io/connector"]
        template = flow.spec.connectors.named(ConnectorKind(name)).template
        ids = template.security_context.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert {**restricted, **ids} == spec["securityContext"]
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            } == container["securityContext"]
        assert {"configMap", "emptyDir", "secret", "csi"} >= {
            key for volume in spec["volumes"] for key in volume if key != "name"
        }


def test_a_pod_mounts_only_the_referenced_secrets_at_the_expected_paths() -> None:
    source = _deployments(_objects(_example("client-certificates")))
    for deployment in source.values():
        spec = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {
            mount["mountPath"]: volumes[mount["name"]]
            for mount in spec["containers"][0]["volumeMounts"]
            if mount["mountPath"].startswith("/mnt/")
        }
        assert mounted
        for path, volume in mounted.items():
            name = volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
            assert path.rpartition("/")[2] == name


def test_a_changed_setting_rolls_only_its_connector() -> None:
    """The other two Deployments are unchanged."""
    before = _deployments(_objects(_example("smallest")))
    after = _deployments(
        _objects(
            _changed("smallest", connectors={"source": {"config": {"refresh.topics.interval.seconds": "7"}}})
        )
    )

    assert ["east-to-west-source"] == [name for name in before if before[name] != after[name]]
    annotations = [
        deployments["east-to-west-source"]["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]
        for deployments in (before, after)
    ]
    assert annotations[0] != annotations[1]


def test_a_pause_changes_only_config_maps() -> None:
    """Pods read changes of their mounted files. This holds for one pod and for several."""
    for count in (1, 2):
        running, paused = (_scaled(count, state=state) for state in ("Running", "Paused"))
        assert {kind for kind, _ in _differing(running, paused)} == {"ConfigMap"}


def _scaled(replicas: int, **spec: Any) -> list[Object]:
    return _objects(_changed("smallest", connectors={"source": {"replicas": replicas}}, **spec))


def _differing(before: list[Object], after: list[Object]) -> set[tuple[str, str]]:
    """Returns the kind and name of the objects that differ or are in only one of the lists."""
    old, new = ({(x["kind"], x["metadata"]["name"]): x for x in planned} for planned in (before, after))
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def test_scaling_between_two_and_more_pods_replaces_no_pod() -> None:
    """Neither the template nor the properties contain the number of pods."""
    before, after = _scaled(2), _scaled(3)

    assert {("Deployment", "east-to-west-source")} == _differing(before, after)
    old, new = (_deployments(planned)["east-to-west-source"] for planned in (before, after))
    assert (2, 3) == (old["spec"].pop("replicas"), new["spec"].pop("replicas"))
    assert old == new


def test_a_second_pod_changes_to_distributed_mode_and_adds_its_objects() -> None:
    """The mode is a rollout reason. The objects of other connectors are unchanged."""
    one_pod, two_pods = _scaled(1), _scaled(2)
    kinds = ("Service", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Deployment")

    assert {(kind, "east-to-west-source") for kind in kinds} == _differing(one_pod, two_pods)
    old, new = (_deployments(planned)["east-to-west-source"] for planned in (one_pod, two_pods))
    reasons = reasons_to_roll(old, new, {}, {})
    assert "mode standalone -> distributed" in reasons
    assert "mode distributed -> standalone" in reasons_to_roll(new, old, {}, {})


def test_a_stopped_flow_with_several_pods_stays_in_distributed_mode() -> None:
    """A rollout is then not needed to resume it."""
    assert {("Deployment", "east-to-west-source")} >= {
        (kind, name)
        for kind, name in _differing(_scaled(2), _scaled(2, state="Stopped"))
        if "-source" in name
    }


def test_connectors_have_separate_groups_and_topics() -> None:
    """A node runs all connectors in its config topic, so that connectors cannot share the topic."""
    files = [
        item["data"]["worker.properties"] for item in _objects(_example("several-pods")) if "data" in item
    ]
    workers = [parse_properties(text) for text in files]

    for key in ("group.id", "config.storage.topic", "status.storage.topic"):
        values = [properties[key] for properties in workers if key in properties]
        assert len(values) == len(set(values)) >= 2
    assert len({properties["offset.storage.topic"] for properties in workers}) == 1


def test_the_replicator_accepts_the_properties_of_several_pods_in_distributed_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No property causes a warning. Each pod resolves its own address."""
    monkeypatch.setenv(POD_IP, "10.1.2.3")
    files = next(item["data"] for item in _objects(_example("several-pods")) if "data" in item)

    settings = load_distributed(files[WORKER_FILE], [files[CONNECTOR_FILE]])

    assert () == settings.warnings
    assert ("http://0.0.0.0:8080",) == settings.http.listeners
    assert ("https://0.0.0.0:8083",) == settings.http.internal
    assert settings.distributed is not None
    group = settings.distributed.group
    assert group is not None
    assert ("10.1.2.3", 8083) == (settings.http.advertised_host, settings.http.advertised_port)
    assert ("east-mm2-source", "east-to-west-source..svc") == (group.group_id, group.server_name)
    assert settings.http.tls["ssl.client.auth"] == "required"


def test_a_stopped_flow_has_no_pods_and_keeps_its_other_objects() -> None:
    running, stopped = _objects(_example("smallest")), _objects(_changed("smallest", state="Stopped"))

    assert {0} == {deployment["spec"]["replicas"] for deployment in _deployments(stopped).values()}
    assert [item["metadata"] for item in running] == [item["metadata"] for item in stopped]
