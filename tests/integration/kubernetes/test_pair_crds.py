"""The CRDs of MirrorPair and Switchover on a real API server: examples, rules, columns, and a spec that never changes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.requests import ApiResponse, Requests

EXAMPLES = Path(__file__).parents[2] / "examples" / "pairs"
VALID = sorted((EXAMPLES / "valid").glob("*.yaml"))
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))
FIELD = re.compile(r"# expect: (spec[^:[]*)(?:\[[^]]*\][^:]*)?: ([^\n]*)")
PLURALS = {"MirrorPair": "mirrorpairs", "Switchover": "switchovers"}
NAME = "move-to-west"
PLANNED: dict[str, Any] = yaml.safe_load((EXAMPLES / "valid" / "planned.yaml").read_text())


@pytest.fixture(scope="module")
def requests(mirrorflows: ApiServer) -> Requests:
    """Requests of the administrator."""
    return Requests(mirrorflows.kubectl.kubeconfig)


@pytest.fixture
def cluster(mirrorflows: ApiServer, namespace: Kubectl) -> Kubectl:
    """Returns kubectl in the test's namespace of a server with MirrorFlow's CRDs."""
    return mirrorflows.kubectl.within(namespace.namespace)


def _created(requests: Requests, text: str) -> ApiResponse:
    """Creates the example as a dry run in the namespace default."""
    document = yaml.safe_load(text)
    document["metadata"].pop("namespace", None)
    path = f"/apis/mirrorflow.io/v1alpha1/namespaces/default/{PLURALS[document['kind']]}"
    query = "dryRun=All&fieldValidation=Strict"
    return requests("POST", f"{path}?{query}", yaml.safe_dump(document), content_type="application/yaml")


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_example_is_accepted(requests: Requests, path: Path):
    response = _created(requests, path.read_text())

    assert response.status == 201, response.message


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_example_is_refused_for_the_expected_field(requests: Requests, path: Path):
    """Rules between fields have the same sentence as `mirrorflow validate`."""
    text = path.read_text()
    announced = FIELD.match(text)
    assert announced

    response = _created(requests, text)

    assert response.status in {400, 422}
    message = re.sub(
        r"members\[(\w+)\]", r"members.\1", response.message
    )  # as the server writes the key of a map
    assert re.search(rf"(?<![\w]){re.escape(announced[1])}\b", message)
    if "; " in announced[2]:
        assert announced[2] in message


@pytest.mark.parametrize("kind", ["mirrorpairs", "switchovers"])
def test_a_crd_is_established_and_structural(mirrorflows: ApiServer, kind: str):
    conditions = mirrorflows.kubectl.get("crd", f"{kind}.mirrorflow.io")["status"]["conditions"]

    assert {"Established": "True", "NamesAccepted": "True"} == {
        condition["type"]: condition["status"] for condition in conditions
    }


@pytest.mark.parametrize(
    "changed",
    [{"to": "east"}, {"type": "Rehearsal"}, {"pair": "other"}, {"liveGroups": True}],
    ids=["to", "type", "pair", "groups"],
)
def test_the_spec_of_a_switchover_never_changes(cluster: Kubectl, changed: dict[str, Any]):
    """A revert in Git is refused, and does not cause a failover."""
    cluster.apply(PLANNED)

    with pytest.raises(KubectlError, match=r"spec: .*it is immutable.*create another Switchover"):
        cluster.apply({**PLANNED, "spec": {**PLANNED["spec"], **changed}})


def test_applying_an_unchanged_switchover_again_changes_nothing(cluster: Kubectl):
    cluster.apply(PLANNED)
    before = cluster.get("switchover", NAME)["metadata"]["resourceVersion"]
    cluster.apply(PLANNED)

    assert before == cluster.get("switchover", NAME)["metadata"]["resourceVersion"]


def test_kubectl_get_shows_the_progress_of_a_switchover(cluster: Kubectl):
    cluster.apply(PLANNED)
    status = {
        "state": "Draining",
        "waitsFor": "Waits for the copy of 7 offsets.",
        "writesRefused": {"since": "2026-11-30T10:00:00Z", "milliseconds": 1_300},
        "conditions": [
            {
                "type": "Succeeded",
                "status": "Unknown",
                "reason": "Draining",
                "message": "It is under way.",
                "lastTransitionTime": "2026-11-30T10:00:00Z",
            }
        ],
    }
    body = {key: PLANNED[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status}
    cluster.apply(body, "--subresource=status", "--field-manager=operator")

    short, wide = cluster("get", "swo").splitlines(), cluster("get", "swo", "--output=wide").splitlines()

    assert short[0].split() == ["NAME", "PAIR", "TO", "TYPE", "STATE", "SUCCEEDED", "REFUSED", "MS", "AGE"]
    assert short[1].split()[:7] == [NAME, "east-west", "west", "Planned", "Draining", "Unknown", "1300"]
    assert "Waits for the copy of 7 offsets." in wide[1]


def test_a_flow_is_still_found_by_its_singular_name(cluster: Kubectl):
    """A category of that name with several kinds would make kubectl refuse it."""
    cluster.apply((EXAMPLES.parent / "valid" / "smallest.yaml").read_text())

    assert "east-to-west" == cluster.get("mirrorflow", "east-to-west")["metadata"]["name"]
