"""The operator, as a process, on a real API server: a MirrorFlow becomes its objects, follows its changes, and nothing is written twice."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from mirrorflow_operator.plan.rollouts import DEFAULTS_ANNOTATION
from mirrorflow_operator.reconcile.object_writer import with_owner
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, Written
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import (
    IMAGE,
    OURS,
    events,
    flow_id_of,
    manifest,
    names,
    planned,
    there,
    unchanging,
)
from tests.unit.operator.observations import resource as resource_of

USER = "operator-of-all"


@pytest.fixture(scope="module")
def operator(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One for all tests of this module: it serves the whole cluster, each test has its namespace."""
    user = mirrorflows.user(USER, groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def settled(
    operator: OperatorProcess, mirrorflows: ApiServer, namespace: Kubectl
) -> Callable[[], list[Written]]:
    """Waits until nothing is due and the status is about the spec that is there; all that was written in the namespace."""

    def wait() -> list[Written]:
        def quiet() -> bool:
            operator.child.must_run()
            flows = namespace.get("mirrorflows")["items"]
            observed = all(
                one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"]
                for one in flows
            )
            return observed and operator.idle

        wait_until("the operator has settled", quiet)
        return unchanging(lambda: mirrorflows.written_by(USER, namespace.namespace))

    return wait


def images(namespace: Kubectl) -> set[str]:
    """Return the container images of all Deployments."""
    pods = [one["spec"]["template"]["spec"] for one in namespace.get("deployments")["items"]]
    return {container["image"] for pod in pods for container in pod["containers"]}


def test_a_flow_becomes_its_objects_and_its_pods(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """All of the plan and nothing else, as planned, owned by the flow, each written once."""
    document = manifest()
    namespace.apply(document)

    written = settled()

    found = there(namespace)
    resource = namespace.get("mirrorflow", "east-to-west")
    uid, flow_id = resource["metadata"]["uid"], resource["status"]["flowId"]
    cluster = namespace.get("namespace", "kube-system")["metadata"]["uid"]
    assert flow_id == f"east-to-west@{namespace.namespace}.{cluster}"
    wanted = planned(document, namespace.namespace, flow_id=flow_id)
    assert set(found) == names(wanted)
    for one in wanted:
        live = found[f"{one['kind']} {one['metadata']['name']}"]
        owner = live["metadata"]["ownerReferences"]
        assert [(own["kind"], own["uid"], own["controller"]) for own in owner] == [("MirrorFlow", uid, True)]
        assert live["metadata"]["labels"] == one["metadata"]["labels"]
        if one["kind"] == "ConfigMap":
            assert live["data"] == one["data"]
    wait_until("Kubernetes has made their pods", lambda: len(namespace.get("pods", OURS)["items"]) == 3)
    children = [one for one in written if one.resource not in {"mirrorflows/status", "events"}]
    account = [one for one in children if (one.resource, one.name) == ("serviceaccounts", "east-to-west")]
    assert 2 == len(account)  # once with what is pinned
    assert len(children) - 1 == len(wanted) == len({(one.resource, one.name) for one in children})
    assert events(namespace, "Created")


def test_the_resource_itself_is_left_as_its_user_wrote_it(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """No finalizer, no annotation, no label; the operator owns the status and nothing else."""
    namespace.apply(manifest())
    settled()

    metadata = namespace.get("mirrorflow", "east-to-west", "--show-managed-fields")["metadata"]

    assert {"finalizers", "annotations", "labels"}.isdisjoint(metadata)
    owned_fields = [
        set(one["fieldsV1"]) for one in metadata["managedFields"] if one["manager"] == "mirrorflow-operator"
    ]
    assert owned_fields == [{"f:status"}]


def test_a_change_of_one_connector_touches_that_one_alone_and_says_why(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """One ConfigMap, one Deployment, one Event with the names of the properties; the other two keep their pods."""
    document = manifest()
    namespace.apply(document)
    before = settled()
    old = there(namespace)

    document["spec"]["connectors"] = {"source": {"tasks": 3}}
    namespace.apply(document)
    written = settled()[len(before) :]

    children = [one for one in written if one.resource not in {"mirrorflows/status", "events"}]
    assert [(one.resource, one.name) for one in children] == [
        ("configmaps", "east-to-west-source"),
        ("deployments", "east-to-west-source"),
    ]
    assert events(namespace, "Rolling") == [
        "Replacing the pods of east-to-west-source: properties tasks.max."
    ]
    assert "tasks.max" in namespace("describe", "mirrorflow", "east-to-west")
    now = there(namespace)
    assert {name for name in now if _version(now[name]) != _version(old[name])} == {
        "ConfigMap east-to-west-source",
        "Deployment east-to-west-source",
    }


def _version(found: dict[str, Any]) -> object:
    """What changes with the content: status is not in it where there is a generation."""
    metadata = found["metadata"]
    return metadata.get("generation", metadata["resourceVersion"])


def test_what_the_plan_has_no_more_goes(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """A flow without groups has no checkpoint connector; what else bears a label of ours but not our owner stays."""
    document = manifest()
    namespace.apply(document)
    settled()
    stranger = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "stranger", "labels": {"mirrorflow.io/flow": "east-to-west"}},
    }
    namespace.apply(stranger)
    # Admission lets the operator delete nothing without its label: it must not try, or the rest would wait for ever.
    flow = namespace.get("mirrorflow", "east-to-west")
    owner = {
        "apiVersion": flow["apiVersion"],
        "kind": "MirrorFlow",
        "name": "east-to-west",
        "uid": flow["metadata"]["uid"],
    }
    labels = {"mirrorflow.io/flow": "east-to-west"}
    unlabelled = {"name": "a-orphan", "labels": labels, "ownerReferences": [owner]}
    namespace.apply({**stranger, "metadata": unlabelled})

    document["spec"]["groups"] = {"include": []}
    namespace.apply(document)

    wanted = names(planned(document, namespace.namespace)) | {"ConfigMap stranger", "ConfigMap a-orphan"}
    wait_until("the checkpoint connector is gone", lambda: set(there(namespace)) == wanted)
    assert "Deployment east-to-west-checkpoint" not in wanted
    assert events(namespace, "Removed")


def test_manual_changes_are_reverted(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """A scaled Deployment, a deleted ConfigMap, a label that was taken away."""
    namespace.apply(manifest())
    settled()
    wanted = set(there(namespace))

    namespace("scale", "deployment", "east-to-west-source", "--replicas=4")
    namespace("delete", "configmap", "east-to-west-heartbeat")
    namespace("label", "serviceaccount", "east-to-west", "mirrorflow.io/flow-")

    def mended() -> bool:
        now = there(namespace)
        return set(now) == wanted and now["Deployment east-to-west-source"]["spec"]["replicas"] == 1

    wait_until("all three are mended", mended)


def test_what_was_added_by_hand_stays(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """A variable, a container and a key that the operator does not set, also when it writes the objects again."""
    document = manifest()
    namespace.apply(document)
    settled()
    sidecar = {"name": "sidecar", "image": "example/sidecar:1"}
    ours = {"name": "replicator", "env": [{"name": "ADDED", "value": "by hand"}]}
    added = {"spec": {"template": {"spec": {"containers": [ours, sidecar]}}}}
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
    containers = {one["name"]: one for one in pod["containers"]}
    variables = {one["name"]: one["value"] for one in containers["replicator"]["env"]}
    assert ("tasks.max=3" in files["connector.properties"], files["note"]) == (True, "added by hand")
    assert set(containers) == {"replicator", "sidecar"}
    assert variables == {"A": "b", "ADDED": "by hand"}


def test_a_name_that_is_taken_is_left_alone_and_told(namespace: Kubectl):
    """A foreign ConfigMap keeps its data; the status names the conflict, and the flow continues once the name is free."""
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "east-to-west-source"},
        "data": {"worker.properties": "theirs"},
    }
    namespace.apply(theirs)
    namespace.apply(manifest())

    def told() -> bool:
        flow = namespace.get("mirrorflow", "east-to-west")
        return "ConfigMap east-to-west-source" in json.dumps(flow.get("status", {}))

    wait_until("the status names it", told)
    left = namespace.get("configmap", "east-to-west-source")
    assert left["data"] == {"worker.properties": "theirs"}
    assert "labels" not in left["metadata"]
    assert "Deployment east-to-west-source" not in there(namespace)

    namespace("delete", "configmap", "east-to-west-source")
    wait_until(
        "the flow continues", lambda: "Deployment east-to-west-source" in there(namespace), timeout_s=90
    )


def test_stopped_means_no_pods_and_running_brings_them_back(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The objects stay: only the number of pods changes."""
    document = manifest(state="Stopped")
    namespace.apply(document)
    settled()
    replicas = {
        name: one["spec"]["replicas"] for name, one in there(namespace).items() if "Deployment" in name
    }
    assert set(replicas.values()) == {0}

    namespace.apply({**document, "spec": {**document["spec"], "state": "Running"}})

    wait_until("the pods are there", lambda: len(namespace.get("pods", OURS)["items"]) == 3)


def test_a_deleted_flow_takes_its_objects_with_it_and_nothing_is_made_again(
    namespace: Kubectl, settled: Callable[[], list[Written]], mirrorflows: ApiServer
):
    """Kubernetes deletes what is owned; the operator deletes nothing. A flow of the same name begins anew."""
    document = manifest()
    namespace.apply(document)
    before = settled()

    namespace("delete", "mirrorflow", "east-to-west", "--cascade=foreground", "--timeout=60s")

    wait_until("all are gone", lambda: not there(namespace) and not namespace.get("pods", OURS)["items"])
    assert mirrorflows.written_by(USER, namespace.namespace) == before
    namespace.apply(document)
    settled()
    assert set(there(namespace)) == names(planned(document, namespace.namespace))


def test_a_flow_that_a_finalizer_holds_keeps_its_pods_and_says_so(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    namespace.apply(manifest())
    settled()
    hold = '{"metadata": {"finalizers": ["example.com/backup"]}}'
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", f"--patch={hold}")
    namespace("delete", "mirrorflow", "east-to-west", "--wait=false")

    wait_until(
        "the status says so", lambda: _told(namespace, "east-to-west", "Reconciling")["reason"] == "Deleting"
    )
    assert "example.com/backup" in _told(namespace, "east-to-west", "Reconciling")["message"]
    assert 3 == len(namespace.get("deployments")["items"])
    release = '{"metadata": {"finalizers": null}}'
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", f"--patch={release}")
    wait_until("its objects are gone", lambda: not there(namespace))


def test_what_is_pinned_survives_a_wiped_status(namespace: Kubectl, settled: Callable[[], list[Written]]):
    """Another writer, or an older definition, has taken the version and the id out of it."""
    namespace.apply(manifest())
    settled()
    before = namespace.get("mirrorflow", "east-to-west")["status"]
    wipe = '{"status": {"flowId": null, "version": "9.9", "conditions": null}}'
    namespace(
        "patch", "mirrorflow", "east-to-west", "--subresource=status", "--type=merge", f"--patch={wipe}"
    )

    def restored() -> bool:
        found = namespace.get("mirrorflow", "east-to-west")["status"]
        return (found.get("flowId"), found.get("version")) == (before["flowId"], before["version"])

    wait_until("the status has both again", restored)
    settled()
    assert images(namespace) == {IMAGE}


def test_a_version_that_the_operator_does_not_have_changes_no_image(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """It is said in the status and in a Warning event; the rest of the spec is followed."""
    document = manifest()
    namespace.apply(document)
    settled()
    before = images(namespace)

    document["spec"]["version"] = "9.9.9"
    document["spec"]["connectors"] = {"source": {"tasks": 5}}
    namespace.apply(document)
    written = settled()

    assert before == images(namespace)
    assert "configmaps" in {one.resource for one in written}
    accepted = condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "UnknownVersion")
    warned = namespace.get("events", "--field-selector=type=Warning,involvedObject.kind=MirrorFlow")["items"]
    assert [(one["reason"], one["message"]) for one in warned] == [("UnknownVersion", accepted["message"])]


def test_pods_of_an_earlier_release_stay_until_something_else_replaces_them(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """A Deployment without the defaults is left as it is; a changed property brings them, and another number of pods does not."""
    document = manifest()
    namespace.apply(document)
    settled()
    _as_of_an_earlier_release(namespace, document)
    before = settled()
    name = "Deployment east-to-west-source"
    earlier = there(namespace)[name]["spec"]["template"]
    assert DEFAULTS_ANNOTATION not in earlier["metadata"]["annotations"]

    document["spec"]["connectors"] = {"source": {"replicas": 0}}
    namespace.apply(document)
    written = settled()[len(before) :]
    assert ("deployments", "east-to-west-source") in {(one.resource, one.name) for one in written}
    assert earlier == there(namespace)[name]["spec"]["template"]

    document["spec"]["connectors"] = {"source": {"tasks": 3}}
    namespace.apply(document)
    settled()
    assert DEFAULTS_ANNOTATION in there(namespace)[name]["spec"]["template"]["metadata"]["annotations"]


def _as_of_an_earlier_release(namespace: Kubectl, document: dict[str, Any]) -> None:
    """Writes the Deployments as an operator without the defaults of pods did, in the name of the one that runs."""
    flow = parse_flow({**document, "metadata": {**document["metadata"], "namespace": namespace.namespace}})
    uid = namespace.get("mirrorflow", flow.metadata.name)["metadata"]["uid"]
    resource = replace(resource_of(flow), namespace=namespace.namespace, uid=uid)
    connectors = plan(flow, POD_LAYOUT, flow_id=flow_id_of(namespace, document))
    found = objects(flow, connectors, image=IMAGE, has_defaults=False)
    for one in found:
        if one["kind"] == "Deployment":
            namespace.apply(with_owner(one, resource), "--field-manager=mirrorflow-operator")


def test_neither_another_operator_nor_a_newer_one_writes_what_is_there(
    mirrorflows: ApiServer,
    team: Kubectl,
    settled: Callable[[], list[Written]],
    tmp_path: Path,
):
    """Started beside the first, with the same task and a newer replicator for new flows: it writes nothing, so it rolls nothing."""
    examples = sorted((Path(__file__).parents[2] / "examples" / "valid").glob("*.yaml"))
    for number, example in enumerate(examples):
        document = dict(read_document(example.read_text()))
        for side in ("source", "target"):
            document["spec"][side]["bootstrapServers"] = [f"{side}-{number}:9092"]
        document["metadata"] = {"name": f"flow-{number}"}
        team.apply(document)
    settled()

    other = mirrorflows.user("operator-again", groups=["system:masters"])
    with OperatorProcess(
        kubeconfig=other.kubeconfig,
        folder=tmp_path,
        namespaces=[team.namespace],
        # In the namespace of the first, which the flows' NetworkPolicies admit.
        environment={"MIRRORFLOW_REPLICATOR_VERSIONS": "0.2.0,0.1.0", "POD_NAMESPACE": "default"},
    ) as again:
        again.wait_until_leading()
        wait_until(
            "it has looked at each", lambda: again.metric('reconciles_total{result="ok"}') >= len(examples)
        )
        wait_until("nothing is due", lambda: again.idle)

    assert mirrorflows.written_by("operator-again") == []


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _told(namespace: Kubectl, name: str, kind: str = "Ready") -> Mapping[str, Any]:
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
def test_an_object_that_can_never_be_accepted_is_reported_and_stops_no_other(
    mirrorflows: ApiServer,
    namespace: Kubectl,
    settled: Callable[[], list[Written]],
    connector: dict[str, Any],
    named: str,
):
    """Whether the server answers 422, or 500 as in trouble of its own: it is not sent again until the spec changes."""
    document = manifest(connectors={"source": connector})
    name = document["metadata"]["name"]
    namespace.apply(document)

    wait_until("the status says so", lambda: _told(namespace, name, "Stalled")["status"] == "True")
    settled()
    for kind in ("Ready", "Accepted"):
        told = _told(namespace, name, kind)
        assert ("False", "ObjectsRefused") == (told["status"], told["reason"])
        assert "Deployment east-to-west-source" in told["message"]
        assert named in told["message"]
    assert {"east-to-west-checkpoint", "east-to-west-heartbeat"} == {
        one["metadata"]["name"] for one in namespace.get("deployments")["items"]
    }
    refused = [
        one
        for one in mirrorflows.log_of(USER)
        if one.is_write and (one.namespace, one.name) == (namespace.namespace, "east-to-west-source")
        if one.asked.resource == "deployments"
    ]
    assert 1 == len(refused)

    document["spec"].pop("connectors")
    namespace.apply(document)
    wait_until("its objects are there", lambda: len(namespace.get("deployments")["items"]) == 3)
    wait_until("it is accepted", lambda: _told(namespace, name, "Accepted")["status"] == "True")


def test_an_unknown_setting_is_named_and_changes_no_pod(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The API server stores it: CEL cannot list all keys."""
    document = manifest()
    namespace.apply(document)
    settled()
    before = there(namespace)
    document["spec"]["connectors"] = {"source": {"config": {"ofset.lag.max": "5"}, "tasks": 2}}
    namespace.apply(document)
    settled()
    refused = condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")
    unchanged = there(namespace)
    document["spec"]["connectors"] = {"source": {"config": {"offset.lag.max": "5"}, "tasks": 2}}
    namespace.apply(document)
    settled()

    assert (refused["status"], refused["reason"]) == ("False", "InvalidSpec")
    assert "config[ofset.lag.max]" in refused["message"]
    assert refused["message"].endswith("did you mean offset.lag.max?")
    assert unchanged == before
    assert condition(namespace.get("mirrorflow", "east-to-west"), "Accepted")["status"] == "True"


def test_two_flows_whose_names_meet_in_one_object_do_not_take_it_from_one_another(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """The second is refused, until the first one is gone."""
    namespace.apply(manifest("aa", connectors={"source": {"replicas": 2}}))
    settled()
    before = namespace.get("networkpolicy", "aa-source")["metadata"]
    namespace.apply(manifest("aa-source"))
    wait_until("the second is refused", lambda: _told(namespace, "aa-source")["reason"] == "NameConflict")
    settled()

    after = namespace.get("networkpolicy", "aa-source")["metadata"]
    assert (before["resourceVersion"], before["uid"]) == (after["resourceVersion"], after["uid"])
    assert "MirrorFlow aa " in _told(namespace, "aa-source", "Accepted")["message"]
    assert "NameConflict" != _told(namespace, "aa")["reason"]
    namespace("delete", "mirrorflow", "aa", "--wait=false")
    wait_until(
        "the second continues",
        lambda: (
            "Deployment aa-source-source" in there(namespace)
            and _told(namespace, "aa-source", "Accepted")["status"] == "True"
        ),
        timeout_s=120,
    )


def test_an_object_that_lost_its_labels_gets_them_back_and_delays_no_other(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    namespace.apply(manifest())
    settled()
    taken = [f"{key}-" for key in namespace.get("deployment", "east-to-west-source")["metadata"]["labels"]]
    namespace("label", "deployment", "east-to-west-source", *taken)
    namespace("delete", "deployment", "east-to-west-checkpoint", "--wait=false")

    def repaired() -> bool:
        found = there(namespace)
        return {"Deployment east-to-west-source", "Deployment east-to-west-checkpoint"} <= set(found)

    wait_until("both are there", repaired)


def test_a_flow_of_a_version_that_is_no_longer_offered_is_looked_after_all_the_same(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """As after an upgrade of the operator by two versions: what is deleted comes back, and the spec is followed."""
    document = manifest()
    namespace.apply(document)
    settled()
    name = document["metadata"]["name"]
    earlier = json.dumps({"status": {"version": "0.0.7"}})
    namespace("annotate", "serviceaccount", name, "mirrorflow.io/version=0.0.7", "--overwrite")
    namespace("patch", "mirrorflow", name, "--subresource=status", "--type=merge", f"--patch={earlier}")
    wait_until(
        "the status says so",
        lambda: condition(namespace.get("mirrorflow", name), "Accepted")["reason"] == "UnknownVersion",
    )

    namespace("delete", "deployment", f"{name}-source")
    document["spec"]["state"] = "Paused"
    namespace.apply(document)
    settled()

    assert {"mirrorflow/replicator:0.0.7"} == images(namespace)
    assert condition(namespace.get("mirrorflow", name), "Ready")["reason"] in {"Pausing", "Paused"}


def test_of_two_flows_that_collide_the_younger_has_no_pods_until_the_older_is_gone(
    namespace: Kubectl, settled: Callable[[], list[Written]]
):
    """One that never ran gets no objects; one that ran keeps them and loses its pods; both go on as soon as they may."""
    older, later, never = manifest("a-older"), manifest("b-later"), manifest("c-never")
    free = later["spec"]["target"]
    never["spec"].update(source=older["spec"]["source"], target=older["spec"]["target"])
    for document in (older, later, never):
        namespace.apply(document)
    settled()

    def deployments(flow: str) -> list[int]:
        return [
            one["spec"]["replicas"]
            for one in namespace.get("deployments", f"--selector=mirrorflow.io/flow={flow}")["items"]
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
    wait_until("the later one is stopped", lambda: deployments("b-later") == [0, 0, 0])
    assert deployments("a-older") == [1, 1, 1]

    namespace("delete", "mirrorflow", "a-older")
    wait_until("the later flow runs", lambda: deployments("b-later") == [1, 1, 1])
    namespace("delete", "mirrorflow", "b-later")
    wait_until("the last one begins", lambda: deployments("c-never") == [1, 1, 1])
