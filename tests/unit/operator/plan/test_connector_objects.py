"""The Kubernetes objects of each valid example, and invariants of all of them.

Goldens are `golden/smallest.objects.yaml`, and of each other example the difference from it (`tests.harness.goldens`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.pod_sharing import CONNECTOR_FILE, POD_IP
from mirrorflow_operator.plan.pod_template import WORKER_FILE
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from mirrorflow_operator.plan.rollouts import HASH_ANNOTATION, reasons_to_roll
from mirrorflow_replicator.config.worker_properties import load_distributed
from tests.harness.goldens import check_golden, text_difference

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
GOLDENS = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
FULL = "smallest"
IMAGE = "registry.example/mirrorflow-replicator:1.0.0"


class _Dumper(yaml.SafeDumper):
    """Files within a ConfigMap line by line, as a reviewer reads them."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """A text of several lines as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _objects(flow: MirrorFlow) -> list[Object]:
    return objects(flow, plan(flow, POD_LAYOUT), image=IMAGE)


def _example(name: str) -> MirrorFlow:
    return load_flow((EXAMPLES / f"{name}.yaml").read_text())


def _changed(name: str, **changes: Any) -> MirrorFlow:
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["spec"] |= changes
    return parse_flow(document)


def _deployments(found: list[Object]) -> Mapping[str, Object]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "Deployment"}


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_the_golden(name: str) -> None:
    """Same flow, same bytes; a change is seen in review."""
    full, text = (
        yaml.dump_all(_objects(_example(one)), Dumper=_Dumper, sort_keys=False, width=10_000)
        for one in (FULL, name)
    )
    if name == FULL:
        check_golden(GOLDENS / f"{name}.objects.yaml", text)
    else:
        check_golden(GOLDENS / f"{name}.objects.diff", text_difference(full, text))


@pytest.mark.parametrize("name", NAMES)
def test_pods_pass_the_restricted_standard_and_fix_no_user(name: str) -> None:
    """Pod Security Standards, restricted; any platform may choose the user id, but for a connector whose template does."""
    flow = _example(name)
    for deployment in _deployments(_objects(flow)).values():
        spec = deployment["spec"]["template"]["spec"]
        word = deployment["metadata"]["labels"]["mirrorflow.io/connector"]
        template = getattr(flow.spec.connectors, word).template
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


def test_a_pod_mounts_exactly_what_its_properties_reference() -> None:
    """Each referenced Secret, and no other, stands where the reference looks for it."""
    source = _deployments(_objects(_example("client-certificates")))
    for deployment in source.values():
        spec = deployment["spec"]["template"]["spec"]
        volumes = {one["name"]: one for one in spec["volumes"]}
        mounted = {
            one["mountPath"]: volumes[one["name"]]
            for one in spec["containers"][0]["volumeMounts"]
            if one["mountPath"].startswith("/mnt/")
        }
        assert mounted
        for path, volume in mounted.items():
            name = volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
            assert path.rpartition("/")[2] == name


def test_changing_one_connector_rolls_only_that_one() -> None:
    """Its own workload changes; the two others keep every byte."""
    before = _deployments(_objects(_example("smallest")))
    after = _deployments(
        _objects(
            _changed("smallest", connectors={"source": {"config": {"refresh.topics.interval.seconds": "7"}}})
        )
    )

    assert ["east-to-west-source"] == [name for name in before if before[name] != after[name]]
    annotations = [
        one["east-to-west-source"]["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]
        for one in (before, after)
    ]
    assert annotations[0] != annotations[1]


def test_a_pause_changes_files_and_no_pod() -> None:
    """The pods follow their mounted files, alone or several that share the work."""
    for count in (1, 2):
        running, paused = (_scaled(count, state=state) for state in ("Running", "Paused"))
        assert {kind for kind, _ in _differing(running, paused)} == {"ConfigMap"}


def _scaled(replicas: int, **spec: Any) -> list[Object]:
    return _objects(_changed("smallest", connectors={"source": {"replicas": replicas}}, **spec))


def _differing(before: list[Object], after: list[Object]) -> set[tuple[str, str]]:
    """Kind and name of what is in one of them alone, or otherwise in the other."""
    one, other = ({(x["kind"], x["metadata"]["name"]): x for x in found} for found in (before, after))
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_scaling_between_several_pods_rolls_none() -> None:
    """Neither the template nor the properties know how many there are."""
    before, after = _scaled(2), _scaled(3)

    assert {("Deployment", "east-to-west-source")} == _differing(before, after)
    old, new = (_deployments(found)["east-to-west-source"] for found in (before, after))
    assert (2, 3) == (old["spec"].pop("replicas"), new["spec"].pop("replicas"))
    assert old == new


def test_a_second_pod_adds_the_distributed_form_and_its_objects() -> None:
    """The roll says why; the other connectors keep every byte."""
    one, two = _scaled(1), _scaled(2)
    kinds = ("Service", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Deployment")

    assert {(kind, "east-to-west-source") for kind in kinds} == _differing(one, two)
    old, new = (_deployments(found)["east-to-west-source"] for found in (one, two))
    reasons = reasons_to_roll(old, new, {}, {})
    assert "mode standalone -> distributed" in reasons
    assert "mode distributed -> standalone" in reasons_to_roll(new, old, {}, {})


def test_a_stopped_flow_of_several_pods_keeps_its_form() -> None:
    """Going on is no roll."""
    assert {("Deployment", "east-to-west-source")} >= {
        (kind, name)
        for kind, name in _differing(_scaled(2), _scaled(2, state="Stopped"))
        if "-source" in name
    }


def test_connectors_have_separate_groups_and_topics() -> None:
    """A node runs whatever its config topic names: each connector has a group and topics of its own."""
    files = [one["data"]["worker.properties"] for one in _objects(_example("several-pods")) if "data" in one]
    told = [parse_properties(text) for text in files]

    for key in ("group.id", "config.storage.topic", "status.storage.topic"):
        named = [properties[key] for properties in told if key in properties]
        assert len(named) == len(set(named)) >= 2
    assert len({properties["offset.storage.topic"] for properties in told}) == 1


def test_the_replicator_reads_the_properties_of_several_pods_as_one_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a warning, so that nothing is planned in vain; each resolves its own address."""
    monkeypatch.setenv(POD_IP, "10.1.2.3")
    files = next(one["data"] for one in _objects(_example("several-pods")) if "data" in one)

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


def test_a_stopped_flow_has_no_pods_and_keeps_everything_else() -> None:
    """Stopping is no deletion."""
    running, stopped = _objects(_example("smallest")), _objects(_changed("smallest", state="Stopped"))

    assert {0} == {one["spec"]["replicas"] for one in _deployments(stopped).values()}
    assert [one["metadata"] for one in running] == [one["metadata"] for one in stopped]
