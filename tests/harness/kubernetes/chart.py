"""Renders the chart with Helm, and derives the operator's permissions from it."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.kubernetes.api_server import RequestKind
from tests.harness.kubernetes.helm import HelmError
from tests.harness.kubernetes.installation import HELM

CHART: Final = Path(__file__).parents[3] / "charts" / "mirrorflow"
RELEASE: Final = "mirrorflow"
NAMESPACE: Final = "mirrorflow-system"
OPERATOR: Final = "mirrorflow-operator"
# The user name by which the API server knows the operator of RELEASE in NAMESPACE.
OPERATOR_USER: Final = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
OPERATOR_GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
KUBERNETES: Final = "1.34.0"  # a Helm built without version stamps assumes 1.20
COMMAND_WAIT_S: Final = 60.0
Manifest = dict[str, Any]
Values = Mapping[str, Any]
# The three modes of an installation.
OWN_NAMESPACE: Final[Values] = {}
SEVERAL_NAMESPACES: Final[Values] = {"watch": {"namespaces": ["kafka-east", "kafka-west"]}}
WHOLE_CLUSTER: Final[Values] = {"watch": {"cluster": True}}


def rendered(
    values: Values = OWN_NAMESPACE, *, namespace: str = NAMESPACE, chart: Path = CHART
) -> list[Manifest]:
    """Returns every object of a release with *values*, including its test. Raises HelmError with Helm's message."""
    text = helm(
        "template",
        RELEASE,
        str(chart),
        f"--namespace={namespace}",
        f"--kube-version={KUBERNETES}",
        "--values=-",
        stdin=yaml.safe_dump(dict(values)),
    )
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def chart_after(version: str, folder: Path) -> Path:
    """Creates the chart of the release *version*, which follows the current one, in *folder*."""
    chart = Path(shutil.copytree(CHART, folder / f"mirrorflow-{version}"))
    document = yaml.safe_load((chart / "Chart.yaml").read_text())
    document["annotations"]["mirrorflow.io/previous-version"] = document["appVersion"]
    document |= {"version": version, "appVersion": version}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(document))
    return chart


def rules_of(manifests: list[Manifest]) -> list[Manifest]:
    """Returns the operator's permissions, which are the rules of every role that is bound to its account."""
    bound = {
        (binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"])
        for binding in manifests
        if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        and any(subject["name"] == OPERATOR for subject in binding["subjects"])
    }
    return [
        rule
        for role in manifests
        if (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"]) in bound
        for rule in role["rules"]
    ]


def granted(values: Values = OWN_NAMESPACE) -> frozenset[RequestKind]:
    """Returns each kind of request that the rules of a release with *values* allow."""
    return frozenset(
        RequestKind(verb=verb, group=group, resource=resource)
        for rule in rules_of(rendered(values))
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )


def helm(*arguments: str, stdin: str = "") -> str:
    """Runs helm without a cluster, and returns its output."""
    process = subprocess.run(
        [str(HELM / "helm"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_WAIT_S,
        check=False,
    )
    if process.returncode:
        raise HelmError((process.stderr + process.stdout).strip())
    return process.stdout
