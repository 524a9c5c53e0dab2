"""Only who may get a Secret may name it in a MirrorFlow, wherever a name can stand, or send it elsewhere."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.crd import schema
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.errors import OperatorError
from mirrorflow_operator.plan.properties import POD_LAYOUT
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
# What someone might write into any text: the bare name, a reference, a path, one that another text is appended to.
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
    """Who may write MirrorFlows and read one Secret, which is not SECRET."""
    administrator("create", "role", "flows", "--verb=*", "--resource=mirrorflows.mirrorflow.io")
    administrator("create", "role", "reader", "--verb=get", "--resource=secrets", "--resource-name=own")
    for role in ("flows", "reader"):
        administrator("create", "rolebinding", role, f"--role={role}", "--user=alice")
    user = installed.user("alice").within(TEAM)
    # The rights are the authorizer's own informers' to learn, and the policy's to be compiled.
    wait_until("alice's rights are known", lambda: "yes" in user("auth", "can-i", "get", "secret/own"))
    wait_until("the policy is enforced", lambda: _is_refused(user, _flow(authentication=PLAIN)))
    return user


def _flow(**source: Any) -> dict[str, Any]:
    flow = copy.deepcopy(SMALLEST)
    flow["spec"]["source"] |= source
    return flow


def _is_refused(user: Kubectl, flow: dict[str, Any]) -> bool:
    answer = Requests(user.kubeconfig)("POST", f"{PATH}?dryRun=All", flow)
    return answer.status == 403 and REFUSAL in answer.message


def test_a_refusal_names_the_secret_that_the_user_may_not_get(alice: Kubectl):
    """By name, in kubectl's own answer."""
    with pytest.raises(KubectlError, match=REFUSAL):
        alice.apply(_flow(authentication=PLAIN))


def test_who_may_get_it_names_it(alice: Kubectl, administrator: Kubectl):
    """One Secret is enough of a right, and it need not exist."""
    own = {**PLAIN, "password": {"secretName": "own", "key": "password"}}

    assert "serverside-applied" in alice.apply(_flow(authentication=own), "--dry-run=server")
    assert "serverside-applied" in administrator.apply(_flow(authentication=PLAIN), "--dry-run=server")


def test_a_right_elsewhere_is_none_here(alice: Kubectl, installed: ApiServer):
    """The Secret of the same name in another namespace is another Secret."""
    elsewhere = installed.kubectl.within("default")
    elsewhere("create", "role", "all", "--verb=get", "--resource=secrets")
    elsewhere("create", "rolebinding", "all", "--role=all", "--user=alice")
    wait_until(
        "it is granted", lambda: "yes" in alice.within("default")("auth", "can-i", "get", f"secret/{SECRET}")
    )

    assert _is_refused(alice, _flow(authentication=PLAIN))


@pytest.fixture
def foreign(administrator: Kubectl) -> Iterator[str]:
    """A flow with SECRET, written by a user with the right to read it."""
    flow = _flow(authentication=PLAIN)
    flow["metadata"]["name"] = "foreign"
    administrator.apply(flow)
    yield "foreign"
    administrator("delete", "mirrorflow", "foreign", "--wait=false")


def test_who_may_not_get_it_may_pause_and_label(alice: Kubectl, foreign: str):
    """Neither names nor sends anything; a controller that labels other people's flows needs no Secret."""
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
    ],
    ids=["address", "trust", "user", "config"],
)
def test_who_may_not_get_it_may_not_send_it_elsewhere(alice: Kubectl, foreign: str, patch: str):
    """A password that stays named in the flow would go to whatever address alice writes beside it."""
    with pytest.raises(KubectlError, match=REFUSAL):
        alice("patch", "mirrorflow", foreign, "--type=merge", f"--patch={patch}")


def test_sixteen_secrets_are_asked_for_and_no_more(alice: Kubectl, administrator: Kubectl):
    """The last is asked for like the first, and a policy's budget ends with a sentence."""

    def trusting(*names: str) -> dict[str, Any]:
        return _flow(tls={"trustedCertificates": [{"secretName": one} for one in names]})

    fifteen = [f"own-{at}" for at in range(15)]
    administrator(
        "create",
        "role",
        "many",
        "--verb=get",
        "--resource=secrets",
        *(f"--resource-name={one}" for one in fifteen),
    )
    administrator("create", "rolebinding", "many", "--role=many", "--user=alice")
    wait_until("it is granted", lambda: "yes" in alice("auth", "can-i", "get", "secret/own-14"))

    assert "applied" in alice.apply(trusting(*fifteen, *fifteen, "own"), "--dry-run=server")
    assert _is_refused(alice, trusting(*fifteen, SECRET))
    with pytest.raises(KubectlError, match="more than 16 different Secrets"):
        administrator.apply(trusting(*(f"any-{at}" for at in range(17))), "--dry-run=server")


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
@pytest.mark.parametrize("owner", ["source", "heartbeat", "seed", "verify"])
def test_a_secret_in_a_template_is_checked(alice: Kubectl, owner: str, part: str):
    flow = copy.deepcopy(SMALLEST)
    template = {"template": TEMPLATES[part]}
    flow["spec"] |= {owner: template} if owner in {"seed", "verify"} else {"connectors": {owner: template}}

    assert _is_refused(alice, flow)


def test_a_provider_class_is_checked_like_a_secret(alice: Kubectl, administrator: Kubectl):
    """Only some drivers are allowed at all, because the policy knows what their attributes name."""
    of_class = {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "others"}}
    flow = copy.deepcopy(SMALLEST)
    volume = {"name": "a", "csi": of_class}
    flow["spec"]["connectors"] = {"source": {"template": {"volumes": [volume]}}}
    refusal = "names the SecretProviderClass others, which alice may not get"

    with pytest.raises(KubectlError, match=refusal):
        alice.apply(flow, "--dry-run=server")
    administrator.apply(flow, "--dry-run=server")
    volume["csi"] = {"driver": "any.csi.example.com"}
    with pytest.raises(KubectlError, match=r"not in admission\.csiDrivers"):
        administrator.apply(flow, "--dry-run=server")


def test_a_large_flow_is_within_the_policys_budget(alice: Kubectl):
    """Half a megabyte of patterns and properties is searched, and a name behind them all is found."""
    properties = {f"client.{at}": "x" * 500 for at in range(100)}
    flow = _flow(config=properties)
    flow["spec"]["target"]["config"] = properties
    flow["spec"]["topics"] = {"include": [f"{at}-" + "x" * 800 for at in range(500)]}
    flow["spec"]["connectors"] = {"source": {"config": properties}}
    ask = Requests(alice.kubeconfig)
    fine = ask("POST", f"{PATH}?dryRun=All", flow)
    flow["spec"]["topics"]["exclude"] = [TEXTS[1]]

    assert fine.status == 201, fine.message
    assert _is_refused(alice, flow)


def test_whatever_text_makes_a_pod_see_a_secret_is_asked_for(alice: Kubectl):
    """Every text of the resource, by its schema: what the plan makes of it decides whether the policy has to refuse it."""
    ask = Requests(alice.kubeconfig)
    used, refused = set(), set()
    for path, flow in _flows_with_a_text():
        answer = ask("POST", f"{PATH}?dryRun=All", flow)
        mark = f"{path} {TEXTS.index(_text_of(flow, path))}"
        if answer.status == 403 and REFUSAL in answer.message:
            refused.add(mark)
        elif path.endswith("csi.driver"):
            assert "not in admission.csiDrivers" in answer.message  # whatever its name is
        else:
            assert answer.status == 201, (path, answer.message)
        if _is_used(flow):
            used.add(mark)

    assert used - refused == set()
    # Refused without being used: what a flow of several pods, or of another runId, will use, and what may still be completed by
    # another text.
    places = {mark.split()[0] for mark in refused - used}
    assert all(
        place.startswith(("internalRest.tls", "connectors", "source", "target", "topics", "groups"))
        or place in {f"{job}.template.imagePullSecrets.0" for job in ("seed", "verify")}
        for place in places
    )
    fields = {mark.split()[0].partition(".")[2] for mark in used}
    assert {
        "tls.trustedCertificates.0.secretName",
        "authentication.scope",
        "authentication.username.value",
    } <= fields
    assert {"include.0", "configs.exceptions.0.topics.0", "source.config.x"} <= fields


def _is_used(flow: dict[str, Any]) -> bool:
    """Whether a pod of *flow* mounts SECRET or is pulled with it."""
    document = copy.deepcopy(flow)
    document["metadata"]["namespace"] = TEAM
    known = parse_flow(document)
    found = all_objects(known, image="x:1")
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] in {"Deployment", "Job"}]
    pods += [
        one["spec"]["jobTemplate"]["spec"]["template"]["spec"] for one in found if one["kind"] == "CronJob"
    ]
    mounted = {one["secret"]["secretName"] for pod in pods for one in pod["volumes"] if "secret" in one}
    pulled = {one["name"] for pod in pods for one in pod.get("imagePullSecrets", ())}
    logins = {
        one["csi"]["nodePublishSecretRef"]["name"]
        for pod in pods
        for one in pod["volumes"]
        if "nodePublishSecretRef" in one.get("csi", {})
    }
    variables = {
        one["valueFrom"]["secretKeyRef"]["name"]
        for pod in pods
        for container in (*pod["containers"], *pod.get("initContainers", ()))
        for one in container.get("env", ())
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    return SECRET in mounted | pulled | logins | variables


def _flows_with_a_text() -> Iterator[tuple[str, dict[str, Any]]]:
    """Valid flows, each with one of TEXTS at one place of the schema, on top of each kind of authentication."""
    examples = [yaml.safe_load(path.read_text())["spec"] for path in sorted(EXAMPLES.glob("*.yaml"))]
    for place in _places(schema()["properties"]["spec"]):
        for text in TEXTS:
            for spec in (SMALLEST["spec"], *examples):
                flow = copy.deepcopy(SMALLEST)
                flow["spec"] = copy.deepcopy(spec)
                _without_secrets(flow["spec"])
                flow["spec"] = _with(flow["spec"], place, text)
                if _is_valid(flow):
                    yield ".".join(map(str, place)), flow
                    break


def _places(node: dict[str, Any], *above: str | int) -> Iterator[tuple[str | int, ...]]:
    match node.get("type"):
        case "object" if "properties" in node:
            for name, one in node["properties"].items():
                yield from _places(one, *above, name)
        case "object" if isinstance(node.get("additionalProperties"), dict):
            yield from _places(node["additionalProperties"], *above, "x")
        case "array":
            yield from _places(node["items"], *above, 0)
        case "string" if "enum" not in node:
            yield above


def _with(node: Any, place: tuple[str | int, ...], text: str) -> Any:
    """*node* with *text* at *place*, in the first member of each list."""
    if not place:
        return text
    step, *below = place
    if isinstance(step, int):
        first, rest = (node[0], node[1:]) if node else (None, [])
        return [_with(first, tuple(below), text), *rest]
    return {**(node or {}), step: _with((node or {}).get(step), tuple(below), text)}


def _without_secrets(node: Any) -> None:
    """The names of an example's own Secrets become the one that alice may get."""
    for key, one in (
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        if key == "secretName":
            node[key] = "own"
        elif isinstance(one, str) and POD_LAYOUT.secrets in one:
            node[key] = "${dir:/mnt/mirrorflow/secrets/own:key}"
        elif key == "imagePullSecrets":
            node[key] = ["own"]
        elif key in {"nodePublishSecretRef", "secretKeyRef"}:
            node[key] = {**one, "name": "own"}
        elif key == "volumeAttributes":
            node[key] = {}  # a SecretProviderClass, which alice may not get either
        else:
            _without_secrets(one)


def _is_valid(flow: dict[str, Any]) -> bool:
    document = copy.deepcopy(flow)
    document["metadata"]["namespace"] = TEAM
    try:
        parse_flow(document)
    except OperatorError:
        return False
    return True


def _text_of(flow: dict[str, Any], path: str) -> str:
    at: Any = flow["spec"]
    for step in path.split("."):
        at = at[int(step)] if isinstance(at, list) else at[step]
    return str(at)
