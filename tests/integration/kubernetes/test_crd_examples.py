"""A real API server judges tests/examples as our own types do: each is accepted, or refused for the field it announces.

The server has its own words, so the field is what is compared: the path on the file's first line, without the index or key
at its end, because a rule of the server's stands at the list or the map.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from mirrorflow_operator.api.load import load_flow, parse_flow, read_document
from mirrorflow_operator.api.rules.table import check
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import FieldError, InvalidSpecError
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.requests import Answer, Requests

EXAMPLES = Path(__file__).parents[2] / "examples"
VALID = sorted((EXAMPLES / "valid").glob("*.yaml"))
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))
FIELD = re.compile(r"# expect: ((?:spec|metadata|kind|apiVersion)\b[^:]*?)(?:\[[^]]*\])?: ")
# What is refused before it is known to be a MirrorFlow is not answered with the path of a field.
OF_THE_TYPE = {"apiVersion": r"API version|invalid object type", "kind": r"kind: |invalid object type"}
QUANTITIES = {
    "1": True,
    "1000": True,
    '"0.5"': True,
    '".5"': True,
    '"1."': True,
    "500m": True,
    "100n": True,
    "1e3": True,
    '"1E3"': True,
    "1E": True,
    "1.5Gi": True,
    "2Ei": True,
    "-1": False,
    '"-1"': False,
    "0.5": False,
    "true": False,
    "1ki": False,
    "1K": False,
    "1e": False,
    '""': False,
    "fast": False,
}


@pytest.fixture(scope="module")
def requests(mirrorflows: ApiServer) -> Requests:
    """The administrator's; the namespace is there that an example names."""
    mirrorflows.kubectl("create", "namespace", "kafka")
    return Requests(mirrorflows.kubectl.kubeconfig)


def _sent(requests: Requests, text: str, form: str) -> Answer:
    """The example as it stands, created or applied as kubectl and Argo CD do; nothing is stored."""
    found = {"name": "east-to-west", "namespace": "default"}
    try:
        found |= yaml.safe_load(text)["metadata"]
    except (yaml.YAMLError, TypeError):
        form = "create"
    path = f"/apis/mirrorflow.io/v1alpha1/namespaces/{found['namespace']}/mirrorflows"
    asked = "dryRun=All&fieldValidation=Strict"
    if form == "create":
        return requests("POST", f"{path}?{asked}", text, content_type="application/yaml")
    apply = "application/apply-patch+yaml"
    return requests("PATCH", f"{path}/{found['name']}?{asked}&fieldManager=test", text, content_type=apply)


@pytest.mark.parametrize("form", ["create", "apply"])
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid_example_is_accepted(requests: Requests, path: Path, form: str):
    """Every field of it is known to the server, in strict validation."""
    answer = _sent(requests, path.read_text(), form)

    assert answer.status == 201, answer.message


@pytest.mark.parametrize("form", ["create", "apply"])
@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_example_is_refused_for_the_field_it_announces(requests: Requests, path: Path, form: str):
    """The response names the field."""
    text = path.read_text()
    found = FIELD.match(text)

    answer = _sent(requests, text, form)

    assert answer.status in {400, 422, 500}  # 500 is how server-side apply calls a value of the wrong type
    if found:
        assert re.search(OF_THE_TYPE.get(found[1], rf"(?<![\w]){re.escape(found[1])}\b"), answer.message)
    else:
        assert "invalid YAML" in text or "empty" in text


@pytest.mark.usefixtures("mirrorflows")
def test_an_empty_value_is_an_absent_one(namespace: Kubectl):
    """The server removes it, as `validate` does, and applies the default."""
    text = (EXAMPLES / "empty-values.yaml").read_text()

    for _ in ("new", "changed"):
        namespace("apply", "--filename=-", stdin=text)
        stored = namespace.get("mirrorflow", "east-to-west")
        assert parse_flow(stored).spec == load_flow(text).spec


def _slips(path: Path) -> list[FieldError]:
    """What our own rules find in an example; nothing in one that is wrong by its types."""
    try:
        document = read_document(path.read_text())
        return check(MirrorFlow.model_validate_json(json.dumps(document, default=str), strict=True))
    except (InvalidSpecError, ValidationError):
        return []


@pytest.mark.parametrize("path", [path for path in INVALID if _slips(path)], ids=lambda path: path.stem)
def test_the_server_says_what_validate_says(requests: Requests, path: Path):
    """The response of kubectl names the wrong key or entry and the remedy."""
    message = _sent(requests, path.read_text(), "create").message

    for slip in _slips(path):
        if "Duplicate value" in message:
            assert "listed twice" in slip.message  # the schema's list type, which names the entry
            continue
        key = re.search(r"[.](?:config|labels|annotations)\[(.*)\]$", slip.path)
        problem = slip.message.partition(": ")[0]  # why Java refuses a regular expression, only Python knows
        assert f"{f'key {key[1]}: ' if key else ''}{problem}; {slip.action}" in message


def test_a_secret_written_by_mistake_is_not_repeated(requests: Requests):
    """Responses are logged by the client that applies."""
    for name in ("password-in-plain-text", "custom-with-plain-secret"):
        answer = _sent(requests, (EXAMPLES / "invalid" / f"{name}.yaml").read_text(), "create")

        assert "hunter2" not in answer.message


@pytest.mark.usefixtures("mirrorflows")
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_what_was_applied_does_not_differ_from_its_file(namespace: Kubectl, path: Path):
    """No endless difference in Argo CD, no new generation for the same words: neither by the server's apply nor the client's."""
    flow = dict(read_document(path.read_text()))
    flow["metadata"].pop("namespace", None)
    flow.pop("status", None)
    text = json.dumps(flow)
    namespace.apply(text)
    before = namespace.get("mirrorflow", "east-to-west")["metadata"]

    namespace.apply(text)
    namespace("diff", "--server-side", "--filename=-", stdin=text)  # a difference is an error
    namespace("diff", "--filename=-", stdin=text)
    after = namespace.get("mirrorflow", "east-to-west")["metadata"]

    assert (before["generation"], before["resourceVersion"]) == (1, after["resourceVersion"])


@pytest.mark.parametrize(("written", "accepted"), QUANTITIES.items(), ids=QUANTITIES)
def test_a_quantity_is_what_kubernetes_calls_one(requests: Requests, written: str, *, accepted: bool):
    """As in a pod's resources, but for fractions without quotes and for negative ones."""
    text = (EXAMPLES / "valid" / "smallest.yaml").read_text()
    text += f"  connectors: {{source: {{resources: {{limits: {{memory: {written}}}}}}}}}\n"

    answer = _sent(requests, text, "apply")

    assert (answer.status == 201) == accepted, answer.message
