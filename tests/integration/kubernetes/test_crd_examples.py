"""A real API server accepts and refuses the same files of tests/examples as MirrorFlow's types.

The server has its own messages, so the field is compared. It is the path on the file's first line without a final index
or key, because the server reports a rule at the list or the map.
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
from tests.harness.kubernetes.requests import ApiResponse, Requests

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_USERS = Path(__file__).parents[3] / "examples"
VALID = sorted(
    (
        *(EXAMPLES / "valid").glob("*.yaml"),
        *(OF_USERS / "archive").glob("*.yaml"),
        *(OF_USERS / "spark-operator").glob("*.yaml"),
    )
)
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))
FIELD = re.compile(r"# expect: ((?:spec|metadata|kind|apiVersion)\b[^:]*?)(?:\[[^]]*\])?: ")
# A document that is refused before it is recognized as a MirrorFlow gets a response without the path of a field.
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
    """Returns the administrator's requests. The namespace of the examples exists."""
    mirrorflows.kubectl("create", "namespace", "kafka")
    return Requests(mirrorflows.kubectl.kubeconfig)


def _sent(requests: Requests, text: str, form: str) -> ApiResponse:
    """Sends the unchanged example as a dry run, created or applied like kubectl and Argo CD do."""
    metadata = {"name": "east-to-west", "namespace": "default"}
    try:
        metadata |= yaml.safe_load(text)["metadata"]
    except (yaml.YAMLError, TypeError):
        form = "create"
    path = f"/apis/mirrorflow.io/v1alpha1/namespaces/{metadata['namespace']}/mirrorflows"
    query = "dryRun=All&fieldValidation=Strict"
    if form == "create":
        return requests("POST", f"{path}?{query}", text, content_type="application/yaml")
    apply = "application/apply-patch+yaml"
    return requests("PATCH", f"{path}/{metadata['name']}?{query}&fieldManager=test", text, content_type=apply)


@pytest.mark.parametrize("form", ["create", "apply"])
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_example_is_accepted(requests: Requests, path: Path, form: str):
    """The API server accepts every field with strict validation."""
    response = _sent(requests, path.read_text(), form)

    assert response.status == 201, response.message


@pytest.mark.parametrize("form", ["create", "apply"])
@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_example_is_refused_for_the_expected_field(requests: Requests, path: Path, form: str):
    """The response has the field's path."""
    text = path.read_text()
    announced = FIELD.match(text)

    response = _sent(requests, text, form)

    assert response.status in {400, 422, 500}  # server-side apply returns 500 for a value of the wrong type
    if announced:
        assert re.search(
            OF_THE_TYPE.get(announced[1], rf"(?<![\w]){re.escape(announced[1])}\b"), response.message
        )
    else:
        assert "invalid YAML" in text or "empty" in text


@pytest.mark.usefixtures("mirrorflows")
def test_an_empty_value_counts_as_absent(namespace: Kubectl):
    """The server removes the field, like `validate`, and sets the default."""
    text = (EXAMPLES / "empty-values.yaml").read_text()

    for _ in ("new", "changed"):
        namespace("apply", "--filename=-", stdin=text)
        stored = namespace.get("mirrorflow", "east-to-west")
        assert parse_flow(stored).spec == load_flow(text).spec


def _rule_violations(path: Path) -> list[FieldError]:
    """Returns what MirrorFlow's rules report for an example, or nothing if its types are wrong."""
    try:
        document = read_document(path.read_text())
        return check(MirrorFlow.model_validate_json(json.dumps(document, default=str), strict=True))
    except (InvalidSpecError, ValidationError):
        return []


@pytest.mark.parametrize(
    "path", [path for path in INVALID if _rule_violations(path)], ids=lambda path: path.stem
)
def test_the_server_reports_the_same_errors_as_validate(requests: Requests, path: Path):
    """The message has the wrong key or entry, and the remedy."""
    message = _sent(requests, path.read_text(), "create").message

    for violation in _rule_violations(path):
        if "Duplicate value" in message:
            assert "listed twice" in violation.message  # the schema's list type reports the entry
            continue
        key = re.search(r"[.](?:config|labels|annotations)\[(.*)\]$", violation.path)
        # Only MirrorFlow's Python code detects why Java refuses a regular expression.
        problem = violation.message.partition(": ")[0]
        assert f"{f'key {key[1]}: ' if key else ''}{problem}; {violation.action}" in message


def test_a_secret_written_by_mistake_is_not_in_the_response(requests: Requests):
    """The client that applies the file logs the response."""
    for name in ("password-in-plain-text", "custom-with-plain-secret"):
        response = _sent(requests, (EXAMPLES / "invalid" / f"{name}.yaml").read_text(), "create")

        assert "hunter2" not in response.message


@pytest.mark.usefixtures("mirrorflows")
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_an_applied_flow_does_not_differ_from_its_file(namespace: Kubectl, path: Path):
    """Argo CD shows no difference, and an unchanged file causes no new generation, with server-side and client-side
    diffs.
    """
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
def test_quantities_are_accepted_as_by_kubernetes(requests: Requests, written: str, *, accepted: bool):
    """The rules are those of a pod's resources, except for unquoted fractions and negative numbers."""
    text = (EXAMPLES / "valid" / "smallest.yaml").read_text()
    text += f"  connectors: {{source: {{resources: {{limits: {{memory: {written}}}}}}}}}\n"

    response = _sent(requests, text, "apply")

    assert (response.status == 201) == accepted, response.message
