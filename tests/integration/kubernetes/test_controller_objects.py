"""The operator process on a real API server creates the objects of a MirrorFlow, and updates them without repeated
writes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.rollouts import DEFAULTS_ANNOTATION
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.reconcile.object_writer import with_owner
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, Written
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import (
    IMAGE,
    OF_FLOWS,
    events,
    existing_objects,
    flow_id_of,
    manifest,
    object_names,
    planned,
    wait_until_unchanged,
)
from tests.unit.operator.observations import resource as resource_of

USER = "operator-of-all"


@pytest.fixture(scope="module")
def operator(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests of this module. It serves the whole cluster, and each test has its own namespace."""
    user = mirrorflows.user(USER, groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def settled(
    operator: OperatorProcess, mirrorflows: ApiServer, namespace: Kubectl
) -> Callable[[], list[Written]]:
    """Waits until no work is due and each status is up to date. Returns all writes in the namespace."""

    def wait() -> list[Written]:
        def quiet() -> bool:
            operator.child.must_run()
            flows = namespace.get("mirrorflows")["items"]
            observed = all(
                flow.get("status", {}).get("observedGeneration") == flow["metadata"]["generation"]
                for flow in flows
            )
            return observed and operator.idle

        wait_until("the operator has settled", quiet)
        return wait_until_unchanged(lambda: mirrorflows.written_by(USER, namespace.namespace))

    return wait


def images(namespace: Kubectl) -> set[str]:
    """Returns the container images of all Deployments."""
    pods = [deployment["spec"]["template"]["spec"] for deployment in namespace.get("deployments")["items"]]
    return {container["image"] for pod in pods for container in pod["containers"]}


def test_a_flow_gets_exactly_its_planned_objects_and_pods(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The flow owns all planned objects and no others. They are as planned, and each was written once."""
    document = manifest()
    namespace.apply(document)

    written = settled()

    existing = existing_objects(namespace)
    resource = namespace.get("mirrorflow", "east-to-west")
    uid, flow_id = resource["metadata"]["uid"], resource["status"]["flowId"]
    cluster = namespace.get("namespace", "kube-system")["metadata"]["uid"]
    assert flow_id == f"east-to-west@{namespace.namespace}.{cluster}"
    expected = planned(document, namespace.namespace, flow_id=flow_id)
    assert set(existing) == object_names(expected)
    for object_ in expected:
        live = existing[f"{object_['kind']} {object_['metadata']['name']}"]
        owner = live["metadata"]["ownerReferences"]
        assert [(own["kind"], own["uid"], own["controller"]) for own in owner] == [("MirrorFlow", uid, True)]
        assert live["metadata"]["labels"] == object_["metadata"]["labels"]
        if object_["kind"] == "ConfigMap":
            assert live["data"] == object_["data"]
    wait_until("the pods exist", lambda: len(namespace.get("pods", OF_FLOWS)["items"]) == 3)
    children = [write for write in written if write.resource not in {"mirrorflows/status", "events"}]
    account = [
        write for write in children if (write.resource, write.name) == ("serviceaccounts", "east-to-west")
    ]
    assert 2 == len(account)  # the second write has the pinned values
    assert len(children) - 1 == len(expected) == len({(write.resource, write.name) for write in children})
    assert events(namespace, "Created")


def test_the_operator_changes_only_the_status_of_a_flow(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """It adds no finalizer, annotation or label."""
    namespace.apply(manifest())
    settled()

    metadata = namespace.get("mirrorflow", "east-to-west", "--show-managed-fields")["metadata"]

    assert {"finalizers", "annotations", "labels"}.isdisjoint(metadata)
    owned_fields = [
        set(entry["fieldsV1"])
        for entry in metadata["managedFields"]
        if entry["manager"] == "mirrorflow-operator"
    ]
    assert owned_fields == [{"f:status"}]


def test_a_change_of_one_connector_rolls_only_its_pods_and_gives_the_reason(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """It changes one ConfigMap and one Deployment, and publishes one Event with the names of the properties.

    The other two keep their pods.
    """
    document = manifest()
    namespace.apply(document)
    before = settled()
    old = existing_objects(namespace)

    document["spec"]["connectors"] = {"source": {"tasks": 3}}
    namespace.apply(document)
    written = settled()[len(before) :]

    children = [write for write in written if write.resource not in {"mirrorflows/status", "events"}]
    assert [(write.resource, write.name) for write in children] == [
        ("configmaps", "east-to-west-source"),
        ("deployments", "east-to-west-source"),
    ]
    assert events(namespace, "Rolling") == [
        "Replacing the pods of east-to-west-source: properties tasks.max."
    ]
    assert "tasks.max" in namespace("describe", "mirrorflow", "east-to-west")
    current = existing_objects(namespace)
    assert {name for name in current if _version(current[name]) != _version(old[name])} == {
        "ConfigMap east-to-west-source",
        "Deployment east-to-west-source",
    }


def _version(object_: dict[str, Any]) -> object:
    """Returns what changes with the content. A status change does not change the generation."""
    metadata = object_["metadata"]
    return metadata.get("generation", metadata["resourceVersion"])


def test_objects_that_are_no_longer_planned_are_deleted(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """A flow without groups has no checkpoint connector. Objects with MirrorFlow's label but a different owner stay."""
    document = manifest()
    namespace.apply(document)
    settled()
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "stranger", "labels": {"mirrorflow.io/flow": "east-to-west"}},
    }
    namespace.apply(foreign)
    # Admission refuses to delete objects without the flow's label. The operator must not try to, or the other deletions
    # would wait.
    flow = namespace.get("mirrorflow", "east-to-west")
    owner = {
        "apiVersion": flow["apiVersion"],
        "kind": "MirrorFlow",
        "name": "east-to-west",
        "uid": flow["metadata"]["uid"],
    }
    labels = {"mirrorflow.io/flow": "east-to-west"}
    unlabelled = {"name": "a-orphan", "labels": labels, "ownerReferences": [owner]}
    namespace.apply({**foreign, "metadata": unlabelled})

    document["spec"]["groups"] = {"include": []}
    namespace.apply(document)

    expected = object_names(planned(document, namespace.namespace)) | {
        "ConfigMap stranger",
        "ConfigMap a-orphan",
    }
    wait_until("the checkpoint connector is gone", lambda: set(existing_objects(namespace)) == expected)
    assert "Deployment east-to-west-checkpoint" not in expected
    assert events(namespace, "Removed")


def test_manual_changes_are_reverted(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """A scaled Deployment, a deleted ConfigMap and a removed label are restored."""
    namespace.apply(manifest())
    settled()
    expected = set(existing_objects(namespace))

    namespace("scale", "deployment", "east-to-west-source", "--replicas=4")
    namespace("delete", "configmap", "east-to-west-heartbeat")
    namespace("label", "serviceaccount", "east-to-west", "mirrorflow.io/flow-")

    def all_restored() -> bool:
        current = existing_objects(namespace)
        return set(current) == expected and current["Deployment east-to-west-source"]["spec"]["replicas"] == 1

    wait_until("all three changes are reverted", all_restored)


def test_manual_additions_are_kept(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """A variable, a container and a key that the operator does not set stay, even when it writes the objects again."""
    document = manifest()
    namespace.apply(document)
    settled()
    sidecar = {"name": "sidecar", "image": "example/sidecar:1"}
    replicator = {"name": "replicator", "env": [{"name": "ADDED", "value": "by hand"}]}
    added = {"spec": {"template": {"spec": {"containers": [replicator, sidecar]}}}}
    namespace(
        "patch", "deployment", "east-to-west-source", "--type=strategic", f"--patch={json.dumps(added)}"
    )
    note = json.dumps({"data": {"note": "added by hand"}})
    namespace("patch", "configmap", "east-to-west-source", "--type=merge", f"--patch={note}")
    settled()

    document["spec"]["connectors"] = {
        "source": {"tasks": 3, "template": {"env": [{"name": "A", "value": "b"}]}}
    }
    namespace.apply(document)
    settled()

    files = namespace.get("configmap", "east-to-west-source")["data"]
    pod = namespace.get("deployment", "east-to-west-source")["spec"]["template"]["spec"]
    containers = {item["name"]: item for item in pod["containers"]}
    variables = {item["name"]: item["value"] for item in containers["replicator"]["env"]}
    assert ("tasks.max=3" in files["connector.properties"], files["note"]) == (True, "added by hand")
    assert set(containers) == {"replicator", "sidecar"}
    assert variables == {"A": "b", "ADDED": "by hand"}


def test_a_foreign_object_with_a_planned_name_is_kept_and_reported(namespace: Kubectl):
    """A foreign ConfigMap keeps its data. The status reports the conflict until the name is free."""
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "east-to-west-source"},
        "data": {"worker.properties": "theirs"},
    }
    namespace.apply(theirs)
    namespace.apply(manifest())

    def is_reported() -> bool:
        flow = namespace.get("mirrorflow", "east-to-west")
        return "ConfigMap east-to-west-source" in json.dumps(flow.get("status", {}))

    wait_until("the status reports the conflict", is_reported)
    kept = namespace.get("configmap", "east-to-west-source")
    assert kept["data"] == {"worker.properties": "theirs"}
    assert "labels" not in kept["metadata"]
    assert "Deployment east-to-west-source" not in existing_objects(namespace)

    namespace("delete", "configmap", "east-to-west-source")
    wait_until(
        "the flow continues",
        lambda: "Deployment east-to-west-source" in existing_objects(namespace),
        timeout_s=90,
    )


def test_a_stopped_flow_has_no_pods_until_it_runs_again(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The objects stay. Only the number of pods changes."""
    document = manifest(state="Stopped")
    namespace.apply(document)
    settled()
    replicas = {
        name: object_["spec"]["replicas"]
        for name, object_ in existing_objects(namespace).items()
        if "Deployment" in name
    }
    assert set(replicas.values()) == {0}

    namespace.apply({**document, "spec": {**document["spec"], "state": "Running"}})

    wait_until("the pods exist", lambda: len(namespace.get("pods", OF_FLOWS)["items"]) == 3)


def test_objects_of_a_deleted_flow_are_deleted_and_not_recreated(
    namespace: Kubectl, settled: Callable[[], list[Written]], mirrorflows: ApiServer
):
    """Kubernetes deletes owned objects, and the operator deletes none.

    A new flow with the same name starts from scratch.
    """
    document = manifest()
    namespace.apply(document)
    before = settled()

    namespace("delete", "mirrorflow", "east-to-west", "--cascade=foreground", "--timeout=60s")

    wait_until(
        "all objects are gone",
        lambda: not existing_objects(namespace) and not namespace.get("pods", OF_FLOWS)["items"],
    )
    assert mirrorflows.written_by(USER, namespace.namespace) == before
    namespace.apply(document)
    settled()
    assert set(existing_objects(namespace)) == object_names(planned(document, namespace.namespace))


def test_a_flow_held_by_a_finalizer_keeps_its_pods_and_reports_deleting(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    namespace.apply(manifest())
    settled()
    hold = '{"metadata": {"finalizers": ["example.com/backup"]}}'
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", f"--patch={hold}")
    namespace("delete", "mirrorflow", "east-to-west", "--wait=false")

    wait_until(
        "the status reports Deleting",
        lambda: _condition(namespace, "east-to-west", "Reconciling")["reason"] == "Deleting",
    )
    assert "example.com/backup" in _condition(namespace, "east-to-west", "Reconciling")["message"]
    assert 3 == len(namespace.get("deployments")["items"])
    release = '{"metadata": {"finalizers": null}}'
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", f"--patch={release}")
    wait_until("the objects of the flow are gone", lambda: not existing_objects(namespace))


def test_pinned_values_are_kept_if_the_status_is_wiped(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """A foreign writer, or an older CRD, has removed the version and the id from the status."""
    namespace.apply(manifest())
    settled()
    before = namespace.get("mirrorflow", "east-to-west")["status"]
    wipe = '{"status": {"flowId": null, "version": "9.9", "conditions": null}}'
    namespace(
        "patch", "mirrorflow", "east-to-west", "--subresource=status", "--type=merge", f"--patch={wipe}"
    )

    def restored() -> bool:
        status = namespace.get("mirrorflow", "east-to-west")["status"]
        return (status.get("flowId"), status.get("version")) == (before["flowId"], before["version"])

    wait_until("the status has both values again", restored)
    settled()
    assert images(namespace) == {IMAGE}


def test_a_version_that_the_operator_does_not_offer_changes_no_image(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """Status and a Warning event report it. The rest of the spec is applied."""
    document = manifest()
    namespace.apply(document)
    settled()
    before = images(namespace)

    document["spec"]["version"] = "9.9.9"
    document["spec"]["connectors"] = {"source": {"tasks": 5}}
    namespace.apply(document)
    written = settled()

    assert before == images(namespace)
    assert "configmaps" in {item.resource for item in written}
    accepted = condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "UnknownVersion")
    warnings = namespace.get("events", "--field-selector=type=Warning,involvedObject.kind=MirrorFlow")[
        "items"
    ]
    assert [(item["reason"], item["message"]) for item in warnings] == [
        ("UnknownVersion", accepted["message"])
    ]


def test_pods_of_an_earlier_release_stay_until_a_property_changes(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """A Deployment without the pod defaults is kept.

    A changed property adds them, but a changed number of pods does not.
    """
    document = manifest()
    namespace.apply(document)
    settled()
    _write_deployments_of_an_earlier_release(namespace, document)
    before = settled()
    name = "Deployment east-to-west-source"
    earlier = existing_objects(namespace)[name]["spec"]["template"]
    assert DEFAULTS_ANNOTATION not in earlier["metadata"]["annotations"]

    document["spec"]["connectors"] = {"source": {"replicas": 0}}
    namespace.apply(document)
    written = settled()[len(before) :]
    assert ("deployments", "east-to-west-source") in {(write.resource, write.name) for write in written}
    assert earlier == existing_objects(namespace)[name]["spec"]["template"]

    document["spec"]["connectors"] = {"source": {"tasks": 3}}
    namespace.apply(document)
    settled()
    assert (
        DEFAULTS_ANNOTATION
        in existing_objects(namespace)[name]["spec"]["template"]["metadata"]["annotations"]
    )


def _write_deployments_of_an_earlier_release(namespace: Kubectl, document: dict[str, Any]) -> None:
    """Writes the Deployments like an operator without pod defaults, with the running operator's field manager."""
    flow = parse_flow({**document, "metadata": {**document["metadata"], "namespace": namespace.namespace}})
    uid = namespace.get("mirrorflow", flow.metadata.name)["metadata"]["uid"]
    resource = replace(resource_of(flow), namespace=namespace.namespace, uid=uid)
    connectors = plan(flow, POD_LAYOUT, flow_id=flow_id_of(namespace, document))
    manifests = objects(flow, connectors, image=IMAGE, has_defaults=False)
    for child in manifests:
        if child["kind"] == "Deployment":
            namespace.apply(with_owner(child, resource), "--field-manager=mirrorflow-operator")


def test_a_second_operator_writes_nothing_that_exists(
    mirrorflows: ApiServer,
    team: Kubectl,
    settled: Callable[[], list[Written]],
    tmp_path: Path,
):
    """It has the same task and offers a newer replicator for new flows. It writes nothing, so no pod is replaced."""
    examples = sorted((Path(__file__).parents[2] / "examples" / "valid").glob("*.yaml"))
    for number, example in enumerate(examples):
        document = dict(read_document(example.read_text()))
        for side in ("source", "target"):
            document["spec"][side]["bootstrapServers"] = [f"{side}-{number}:9092"]
        document["metadata"] = {"name": f"flow-{number}"}
        team.apply(document)
    settled()

    user = mirrorflows.user("operator-again", groups=["system:masters"])
    with OperatorProcess(
        kubeconfig=user.kubeconfig,
        folder=tmp_path,
        namespaces=[team.namespace],
        # The flows' NetworkPolicies allow the first operator's namespace.
        environment={"MIRRORFLOW_REPLICATOR_VERSIONS": "0.2.0,0.1.0", "POD_NAMESPACE": "default"},
    ) as second:
        second.wait_until_leading()
        wait_until(
            "the second operator has reconciled each flow",
            lambda: second.metric('reconciles_total{result="ok"}') >= len(examples),
        )
        wait_until("nothing is due", lambda: second.idle)

    assert mirrorflows.written_by("operator-again") == []


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _condition(namespace: Kubectl, name: str, kind: str = "Ready") -> Mapping[str, Any]:
    status = namespace.get("mirrorflow", name).get("status", {})
    return condition({"status": status}, kind) if status.get("conditions") else {"reason": "", "status": ""}


@pytest.mark.parametrize(
    ("connector", "named"),
    [
        ({"template": {"affinity": {"nodeAffinity": "x"}}}, "nodeAffinity"),
        (
            {"template": {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": []}}}}},
            "nodeSelectorTerms",
        ),
    ],
    ids=["not-converted", "invalid"],
)
def test_an_invalid_object_is_reported_and_does_not_block_others(
    mirrorflows: ApiServer,
    namespace: Kubectl,
    settled: Callable[[], list[Written]],
    connector: dict[str, Any],
    named: str,
):
    """Regardless of whether the server returns 422 or 500, the object is not sent again until the spec changes."""
    document = manifest(connectors={"source": connector})
    name = document["metadata"]["name"]
    namespace.apply(document)

    wait_until(
        "the status reports Stalled", lambda: _condition(namespace, name, "Stalled")["status"] == "True"
    )
    settled()
    for kind in ("Ready", "Accepted"):
        condition_ = _condition(namespace, name, kind)
        assert ("False", "ObjectsRefused") == (condition_["status"], condition_["reason"])
        assert "Deployment east-to-west-source" in condition_["message"]
        assert named in condition_["message"]
    assert {"east-to-west-checkpoint", "east-to-west-heartbeat"} == {
        item["metadata"]["name"] for item in namespace.get("deployments")["items"]
    }
    refused = [
        item
        for item in mirrorflows.audit_log_of(USER)
        if item.is_write and (item.namespace, item.name) == (namespace.namespace, "east-to-west-source")
        if item.kind.resource == "deployments"
    ]
    assert 1 == len(refused)

    document["spec"].pop("connectors")
    namespace.apply(document)
    wait_until("all objects exist", lambda: len(namespace.get("deployments")["items"]) == 3)
    wait_until("the flow is accepted", lambda: _condition(namespace, name, "Accepted")["status"] == "True")


def test_an_unknown_setting_is_reported_and_changes_no_pod(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The API server stores it, because CEL cannot list all keys."""
    document = manifest()
    namespace.apply(document)
    settled()
    before = existing_objects(namespace)
    document["spec"]["connectors"] = {"source": {"config": {"ofset.lag.max": "5"}, "tasks": 2}}
    namespace.apply(document)
    settled()
    refused = condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")
    unchanged = existing_objects(namespace)
    document["spec"]["connectors"] = {"source": {"config": {"offset.lag.max": "5"}, "tasks": 2}}
    namespace.apply(document)
    settled()

    assert (refused["status"], refused["reason"]) == ("False", "InvalidSpec")
    assert "config[ofset.lag.max]" in refused["message"]
    assert refused["message"].endswith("did you mean offset.lag.max?")
    assert unchanged == before
    assert condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")["status"] == "True"


def test_two_flows_that_need_the_same_object_name_do_not_overwrite_it(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The second flow is refused until the first one is deleted."""
    namespace.apply(manifest("aa", connectors={"source": {"replicas": 2}}))
    settled()
    before = namespace.get("networkpolicy", "aa-source")["metadata"]
    namespace.apply(manifest("aa-source"))
    wait_until(
        "the second flow is refused", lambda: _condition(namespace, "aa-source")["reason"] == "NameConflict"
    )
    settled()

    after = namespace.get("networkpolicy", "aa-source")["metadata"]
    assert (before["resourceVersion"], before["uid"]) == (after["resourceVersion"], after["uid"])
    assert "MirrorFlow aa " in _condition(namespace, "aa-source", "Accepted")["message"]
    assert "NameConflict" != _condition(namespace, "aa")["reason"]
    namespace("delete", "mirrorflow", "aa", "--wait=false")
    wait_until(
        "the second flow continues",
        lambda: (
            "Deployment aa-source-source" in existing_objects(namespace)
            and _condition(namespace, "aa-source", "Accepted")["status"] == "True"
        ),
        timeout_s=120,
    )


def test_missing_labels_of_an_object_are_restored_without_delay_for_other_objects(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    namespace.apply(manifest())
    settled()
    removed_labels = [
        f"{key}-" for key in namespace.get("deployment", "east-to-west-source")["metadata"]["labels"]
    ]
    namespace("label", "deployment", "east-to-west-source", *removed_labels)
    namespace("delete", "deployment", "east-to-west-checkpoint", "--wait=false")

    def repaired() -> bool:
        existing = existing_objects(namespace)
        return {"Deployment east-to-west-source", "Deployment east-to-west-checkpoint"} <= set(existing)

    wait_until("both Deployments exist", repaired)


def test_a_flow_of_a_version_that_is_no_longer_offered_is_still_reconciled(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The operator was upgraded by two versions. Deleted objects are recreated, and the spec is applied."""
    document = manifest()
    namespace.apply(document)
    settled()
    name = document["metadata"]["name"]
    earlier = json.dumps({"status": {"version": "0.0.7"}})
    namespace("annotate", "serviceaccount", name, "mirrorflow.io/version=0.0.7", "--overwrite")
    namespace("patch", "mirrorflow", name, "--subresource=status", "--type=merge", f"--patch={earlier}")
    wait_until(
        "the status reports UnknownVersion",
        lambda: condition(namespace.get("mirrorflow", name), "Accepted")["reason"] == "UnknownVersion",
    )

    namespace("delete", "deployment", f"{name}-source")
    document["spec"]["state"] = "Paused"
    namespace.apply(document)
    settled()

    assert {"mirrorflow/replicator:0.0.7"} == images(namespace)
    assert condition(namespace.get("mirrorflow", name), "Ready")["reason"] in {"Pausing", "Paused"}


def test_the_newer_of_two_conflicting_flows_has_no_pods_until_the_older_is_deleted(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """A flow that never ran gets no objects.

    A flow that ran keeps them without pods. Both start as soon as they may.
    """
    older, later, never = manifest("a-older"), manifest("b-later"), manifest("c-never")
    free = later["spec"]["target"]
    never["spec"].update(source=older["spec"]["source"], target=older["spec"]["target"])
    for document in (older, later, never):
        namespace.apply(document)
    settled()

    def deployments(flow: str) -> list[int]:
        return [
            deployment["spec"]["replicas"]
            for deployment in namespace.get("deployments", f"--selector=mirrorflow.io/flow={flow}")["items"]
        ]

    accepted = condition(namespace.get("mirrorflow", "c-never"), "Accepted")
    assert (accepted["status"], "a-older" in accepted["message"]) == ("False", True)
    assert (deployments("a-older"), deployments("b-later"), deployments("c-never")) == (
        [1, 1, 1],
        [1, 1, 1],
        [],
    )

    later["spec"]["source"] = older["spec"]["source"]
    later["spec"]["target"] = {**free, "bootstrapServers": older["spec"]["target"]["bootstrapServers"]}
    namespace.apply(later)
    wait_until("the later flow has no pods", lambda: deployments("b-later") == [0, 0, 0])
    assert deployments("a-older") == [1, 1, 1]

    namespace("delete", "mirrorflow", "a-older")
    wait_until("the later flow runs", lambda: deployments("b-later") == [1, 1, 1])
    namespace("delete", "mirrorflow", "b-later")
    wait_until("the last flow runs", lambda: deployments("c-never") == [1, 1, 1])
