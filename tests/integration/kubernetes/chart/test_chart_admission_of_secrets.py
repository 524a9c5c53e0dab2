"""The chart's policy on Secrets.

A MirrorFlow may name or use a Secret only if its author may read that Secret.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.crd import MIRROR_FLOWS, schema
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.errors import OperatorError
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.requests import Requests
from tests.integration.kubernetes.chart.conftest import TEAM
from tests.integration.kubernetes.controlled import all_objects

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
PATH = f"/apis/mirrorflow.io/v1alpha1/namespaces/{TEAM}/mirrorflows"
SECRET = "others-password"
REFUSAL = f"spec names the Secret {SECRET}, which alice may not get"
FOLDER = f"{POD_LAYOUT.secrets}/{SECRET}"
# Texts that may make a pod read the Secret: its name, a reference, and paths to which other text may be appended.
TEXTS = (SECRET, f"${{dir:{FOLDER}:password}}", f"{FOLDER}/password", FOLDER, f"https://x{FOLDER}/password")
SMALLEST: dict[str, Any] = {
    "apiVersion": "mirrorflow.io/v1alpha1",
    "kind": "MirrorFlow",
    "metadata": {"name": "east-to-west"},
    "spec": {
        "source": {"alias": "east", "bootstrapServers": ["kafka-east:9092"]},
        "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]},
    },
}
PLAIN = {
    "type": "Plain",
    "username": {"value": "mirror"},
    "password": {"secretName": SECRET, "key": "password"},
}


@pytest.fixture(scope="module")
def alice(installed: ApiServer, administrator: Kubectl) -> Kubectl:
    """A user who may write MirrorFlows and read one Secret, but not SECRET."""
    administrator("create", "role", "flows", "--verb=*", "--resource=mirrorflows.mirrorflow.io")
    administrator("create", "role", "reader", "--verb=get", "--resource=secrets", "--resource-name=own")
    for role in ("flows", "reader"):
        administrator("create", "rolebinding", role, f"--role={role}", "--user=alice")
    user = installed.user("alice").within(TEAM)
    # The authorizer must receive the permissions from its informers, and the policy must be compiled.
    wait_until("alice's rights are known", lambda: "yes" in user("auth", "can-i", "get", "secret/own"))
    wait_until("the policy is enforced", lambda: _is_refused(user, _flow(authentication=PLAIN)))
    return user


def _flow(**source: Any) -> dict[str, Any]:
    flow = copy.deepcopy(SMALLEST)
    flow["spec"]["source"] |= source
    return flow


def _is_refused(user: Kubectl, flow: dict[str, Any]) -> bool:
    response = Requests(user.kubeconfig)("POST", f"{PATH}?dryRun=All", flow)
    return response.status == 403 and REFUSAL in response.message


def test_a_refusal_names_the_secret_that_the_user_may_not_get(alice: Kubectl):
    """kubectl shows the refusal with the name of the Secret."""
    with pytest.raises(KubectlError, match=REFUSAL):
        alice.apply(_flow(authentication=PLAIN))


def test_a_user_may_name_a_secret_that_the_user_may_get(alice: Kubectl, administrator: Kubectl):
    """The permission for this one Secret is enough, and the Secret need not exist."""
    own = {**PLAIN, "password": {"secretName": "own", "key": "password"}}

    assert "serverside-applied" in alice.apply(_flow(authentication=own), "--dry-run=server")
    assert "serverside-applied" in administrator.apply(_flow(authentication=PLAIN), "--dry-run=server")


def test_a_permission_in_one_namespace_does_not_apply_in_a_different_namespace(
    alice: Kubectl, installed: ApiServer
):
    """A Secret with the same name in a different namespace is a different Secret."""
    elsewhere = installed.kubectl.within("default")
    elsewhere("create", "role", "all", "--verb=get", "--resource=secrets")
    elsewhere("create", "rolebinding", "all", "--role=all", "--user=alice")
    wait_until(
        "the right is granted",
        lambda: "yes" in alice.within("default")("auth", "can-i", "get", f"secret/{SECRET}"),
    )

    assert _is_refused(alice, _flow(authentication=PLAIN))


@pytest.fixture
def foreign(administrator: Kubectl) -> Iterator[str]:
    """A flow with SECRET, written by a user who may read it."""
    flow = _flow(authentication=PLAIN)
    flow["metadata"]["name"] = "foreign"
    administrator.apply(flow)
    yield "foreign"
    administrator("delete", "mirrorflow", "foreign", "--wait=false")


def test_a_user_without_the_permission_may_pause_and_label_a_flow(alice: Kubectl, foreign: str):
    """These changes neither name the Secret nor send it.

    A controller that labels flows of others needs no permission for Secrets.
    """
    alice("label", "mirrorflow", foreign, "seen=yes")
    alice("patch", "mirrorflow", foreign, "--type=merge", '--patch={"spec":{"state":"Paused"}}')

    assert alice.get("mirrorflow", foreign)["spec"]["state"] == "Paused"


@pytest.mark.parametrize(
    "patch",
    [
        '{"spec":{"source":{"bootstrapServers":["of-alice:9092"]}}}',
        '{"spec":{"source":{"tls":{"verifyHostname":false}}}}',
        '{"spec":{"source":{"authentication":{"username":{"value":"other"}}}}}',
        '{"spec":{"connectors":{"source":{"config":{"source.consumer.client.rack":"a"}}}}}',
        '{"spec":{"spark":{"conf":{"spark.jars":"https://of-alice/code.jar"}}}}',
    ],
    ids=["address", "trust", "user", "config", "code"],
)
def test_a_user_without_the_permission_may_not_redirect_the_secret(alice: Kubectl, foreign: str, patch: str):
    """The flow would send its password to any address that alice writes into it.

    Her code in its jobs could do the same.
    """
    with pytest.raises(KubectlError, match=REFUSAL):
        alice("patch", "mirrorflow", foreign, "--type=merge", f"--patch={patch}")


def test_the_policy_checks_at_most_sixteen_secrets(alice: Kubectl, administrator: Kubectl):
    """It checks the sixteenth Secret like the first. A flow with more is refused with a clear message."""

    def with_trusted(*names: str) -> dict[str, Any]:
        return _flow(tls={"trustedCertificates": [{"secretName": name} for name in names]})

    fifteen_names = [f"own-{number}" for number in range(15)]
    administrator(
        "create",
        "role",
        "many",
        "--verb=get",
        "--resource=secrets",
        *(f"--resource-name={name}" for name in fifteen_names),
    )
    administrator("create", "rolebinding", "many", "--role=many", "--user=alice")
    wait_until("the rights are granted", lambda: "yes" in alice("auth", "can-i", "get", "secret/own-14"))

    assert "applied" in alice.apply(with_trusted(*fifteen_names, *fifteen_names, "own"), "--dry-run=server")
    assert _is_refused(alice, with_trusted(*fifteen_names, SECRET))
    with pytest.raises(KubectlError, match="more than 16 different Secrets"):
        administrator.apply(with_trusted(*(f"any-{number}" for number in range(17))), "--dry-run=server")


TEMPLATES: dict[str, Any] = {
    "variable": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "k"}}}]},
    "init-container": {
        "initContainers": [
            {
                "name": "a",
                "image": "a:1",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "k"}}}],
            }
        ]
    },
    "volume": {"volumes": [{"name": "a", "secret": {"secretName": SECRET}}]},
    "login": {
        "volumes": [
            {
                "name": "a",
                "csi": {"driver": "secrets-store.csi.k8s.io", "nodePublishSecretRef": {"name": SECRET}},
            }
        ]
    },
}


@pytest.mark.parametrize("part", TEMPLATES)
@pytest.mark.parametrize("owner", ["source", "heartbeat", "seed", "verify", "archive"])
def test_a_secret_in_a_template_is_checked(alice: Kubectl, owner: str, part: str):
    flow = copy.deepcopy(SMALLEST)
    template = {"template": TEMPLATES[part]}
    job = {"url": "s3://backups/orders", **template} if owner == "archive" else template
    flow["spec"] |= (
        {owner: job} if owner in {"seed", "verify", "archive"} else {"connectors": {owner: template}}
    )

    assert _is_refused(alice, flow)


def test_a_provider_class_is_checked_like_a_secret(alice: Kubectl, administrator: Kubectl):
    """The policy allows only drivers whose attributes it can check."""
    csi_volume = {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "others"}}
    flow = copy.deepcopy(SMALLEST)
    volume = {"name": "a", "csi": csi_volume}
    flow["spec"]["connectors"] = {"source": {"template": {"volumes": [volume]}}}
    refusal = "names the SecretProviderClass others, which alice may not get"

    with pytest.raises(KubectlError, match=refusal):
        alice.apply(flow, "--dry-run=server")
    administrator.apply(flow, "--dry-run=server")
    volume["csi"] = {"driver": "any.csi.example.com"}
    with pytest.raises(KubectlError, match=r"not in admission\.csiDrivers"):
        administrator.apply(flow, "--dry-run=server")


def test_a_large_flow_stays_within_the_cost_budget_of_the_policy(alice: Kubectl):
    """The policy searches half a megabyte of patterns and properties, and refuses a Secret at their end."""
    properties = {f"client.{number}": "x" * 500 for number in range(100)}
    flow = _flow(config=properties)
    flow["spec"]["target"]["config"] = properties
    flow["spec"]["topics"] = {"include": [f"{number}-" + "x" * 800 for number in range(500)]}
    flow["spec"]["connectors"] = {"source": {"config": properties}}
    send_request = Requests(alice.kubeconfig)
    accepted = send_request("POST", f"{PATH}?dryRun=All", flow)
    flow["spec"]["topics"]["exclude"] = [TEXTS[1]]

    assert accepted.status == 201, accepted.message
    assert _is_refused(alice, flow)


def test_every_text_that_gives_a_pod_a_secret_is_checked(alice: Kubectl):
    """Puts texts into every string field of the schema.

    The policy must refuse each flow whose pods would get the Secret.
    """
    send_request = Requests(alice.kubeconfig)
    used, refused = set(), set()
    for path, flow in _flows_with_a_text():
        response = send_request("POST", f"{PATH}?dryRun=All", flow)
        place_and_text = f"{path} {TEXTS.index(_text_of(flow, path))}"
        if response.status == 403 and REFUSAL in response.message:
            refused.add(place_and_text)
        elif path.endswith("csi.driver"):
            assert "not in admission.csiDrivers" in response.message  # a driver is refused by its name first
        else:
            assert response.status == 201, (path, response.message)
        if _is_used(flow):
            used.add(place_and_text)

    assert used - refused == set()
    # These fields are refused but unused in this flow. A flow of several pods or a different runId uses them, or text
    # could be appended that completes them.
    places = {place_and_text.split()[0] for place_and_text in refused - used}
    assert all(
        place.startswith(
            ("internalRest.tls", "connectors", "source", "target", "topics", "groups", "schemas")
        )
        or place in {f"{job}.template.imagePullSecrets.0" for job in ("seed", "verify")}
        for place in places
    )
    fields = {place_and_text.split()[0].partition(".")[2] for place_and_text in used}
    assert {
        "tls.trustedCertificates.0.secretName",
        "authentication.scope",
        "authentication.username.value",
    } <= fields
    assert {"include.0", "configs.exceptions.0.topics.0", "source.config.acks"} <= fields


def _is_used(flow: dict[str, Any]) -> bool:
    """Returns whether a pod of *flow* mounts SECRET or needs it to pull its image."""
    document = copy.deepcopy(flow)
    document["metadata"]["namespace"] = TEAM
    parsed = parse_flow(document)
    manifests = all_objects(parsed, image="x:1")
    pods = [
        manifest["spec"]["template"]["spec"]
        for manifest in manifests
        if manifest["kind"] in {"Deployment", "Job"}
    ]
    pods += [
        manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for manifest in manifests
        if manifest["kind"] == "CronJob"
    ]
    mounted_secrets = {
        volume["secret"]["secretName"] for pod in pods for volume in pod["volumes"] if "secret" in volume
    }
    pull_secrets = {secret["name"] for pod in pods for secret in pod.get("imagePullSecrets", ())}
    csi_secrets = {
        volume["csi"]["nodePublishSecretRef"]["name"]
        for pod in pods
        for volume in pod["volumes"]
        if "nodePublishSecretRef" in volume.get("csi", {})
    }
    variable_secrets = {
        variable["valueFrom"]["secretKeyRef"]["name"]
        for pod in pods
        for container in (*pod["containers"], *pod.get("initContainers", ()))
        for variable in container.get("env", ())
        if "secretKeyRef" in variable.get("valueFrom", {})
    }
    return SECRET in mounted_secrets | pull_secrets | csi_secrets | variable_secrets


def _flows_with_a_text() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields valid flows for each kind of authentication. Each has one of TEXTS in one field of the schema."""
    examples = [yaml.safe_load(path.read_text())["spec"] for path in sorted(EXAMPLES.glob("*.yaml"))]
    for place in _places(schema(MIRROR_FLOWS)["properties"]["spec"]):
        for text in TEXTS:
            for spec in (SMALLEST["spec"], *examples):
                flow = copy.deepcopy(SMALLEST)
                flow["spec"] = copy.deepcopy(spec)
                _without_secrets(flow["spec"])
                flow["spec"] = _with(flow["spec"], place, text)
                if _is_valid(flow):
                    yield ".".join(map(str, place)), flow
                    break


def _places(node: dict[str, Any], *parents: str | int) -> Iterator[tuple[str | int, ...]]:
    match node.get("type"):
        case "object" if "properties" in node:
            for name, child in node["properties"].items():
                yield from _places(child, *parents, name)
        case "object" if isinstance(node.get("additionalProperties"), dict):
            # An unknown key of `config` is refused.
            key = "acks" if parents[-1] == "config" else "x"
            yield from _places(node["additionalProperties"], *parents, key)
        case "array":
            yield from _places(node["items"], *parents, 0)
        case "string" if "enum" not in node:
            yield parents


def _with(node: Any, place: tuple[str | int, ...], text: str) -> Any:
    """Returns a copy of *node* with *text* at *place*. In a list, the first member is changed."""
    if not place:
        return text
    step, *below = place
    if isinstance(step, int):
        first, rest = (node[0], node[1:]) if node else (None, [])
        return [_with(first, tuple(below), text), *rest]
    return {**(node or {}), step: _with((node or {}).get(step), tuple(below), text)}


def _without_secrets(node: Any) -> None:
    """Replaces the names of the example's Secrets by the name of the Secret that alice may get."""
    for key, value in (
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        if key == "secretName":
            node[key] = "own"
        elif isinstance(value, str) and POD_LAYOUT.secrets in value:
            node[key] = "${dir:/mnt/mirrorflow/secrets/own:key}"
        elif key == "imagePullSecrets":
            node[key] = ["own"]
        elif key in {"nodePublishSecretRef", "secretKeyRef"}:
            node[key] = {**value, "name": "own"}
        elif key == "volumeAttributes":
            node[key] = {}  # it may name a SecretProviderClass that alice may not get
        else:
            _without_secrets(value)


def _is_valid(flow: dict[str, Any]) -> bool:
    document = copy.deepcopy(flow)
    document["metadata"]["namespace"] = TEAM
    try:
        parse_flow(document)
    except OperatorError:
        return False
    return True


def _text_of(flow: dict[str, Any], path: str) -> str:
    node: Any = flow["spec"]
    for step in path.split("."):
        node = node[int(step)] if isinstance(node, list) else node[step]
    return str(node)
