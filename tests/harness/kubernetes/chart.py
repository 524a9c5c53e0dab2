"""The chart as Helm renders it, and as Helm installs it."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.kubernetes.api_server import Asked
from tests.harness.kubernetes.helm import HelmError
from tests.harness.kubernetes.installation import HELM

CHART: Final = Path(__file__).parents[3] / "charts" / "mirrorflow"
RELEASE: Final = "mirrorflow"
NAMESPACE: Final = "mirrorflow-system"
OPERATOR: Final = "mirrorflow-operator"
# As the API server calls the operator of RELEASE in NAMESPACE.
OPERATOR_USER: Final = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
OPERATOR_GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
KUBERNETES: Final = "1.34.0"  # a Helm built without a release's stamps takes its cluster for 1.20
ANSWER_WAIT_S: Final = 60.0
Manifest = dict[str, Any]
Values = Mapping[str, Any]
# The three ways to install it.
OWN_NAMESPACE: Final[Values] = {}
SEVERAL_NAMESPACES: Final[Values] = {"watch": {"namespaces": ["kafka-east", "kafka-west"]}}
WHOLE_CLUSTER: Final[Values] = {"watch": {"cluster": True}}


def rendered(
    values: Values = OWN_NAMESPACE, *, namespace: str = NAMESPACE, chart: Path = CHART
) -> list[Manifest]:
    """Every object of a release with *values*, tests and all. Raises HelmError with Helm's complaint."""
    text = helm(
        "template",
        RELEASE,
        str(chart),
        f"--namespace={namespace}",
        f"--kube-version={KUBERNETES}",
        "--values=-",
        stdin=yaml.safe_dump(dict(values)),
    )
    return [one for one in yaml.safe_load_all(text) if one]


def chart_after(version: str, folder: Path) -> Path:
    """The chart of the release *version*, which follows the one of this work tree; made in *folder*."""
    chart = Path(shutil.copytree(CHART, folder / f"mirrorflow-{version}"))
    document = yaml.safe_load((chart / "Chart.yaml").read_text())
    document["annotations"]["mirrorflow.io/previous-version"] = document["appVersion"]
    document |= {"version": version, "appVersion": version}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(document))
    return chart


def rules_of(manifests: list[Manifest]) -> list[Manifest]:
    """What the operator may do: the rules of every role that is bound to its account."""
    bound = {
        (one["roleRef"]["kind"], one["metadata"].get("namespace"), one["roleRef"]["name"])
        for one in manifests
        if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        and any(subject["name"] == OPERATOR for subject in one["subjects"])
    }
    return [
        rule
        for one in manifests
        if (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) in bound
        for rule in one["rules"]
    ]


def granted(values: Values = OWN_NAMESPACE) -> frozenset[Asked]:
    """Each kind of request that `rules_of` a release with *values* allow."""
    return frozenset(
        Asked(verb=verb, group=group, resource=resource)
        for rule in rules_of(rendered(values))
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )


def helm(*arguments: str, stdin: str = "") -> str:
    """What helm prints, without a cluster."""
    done = subprocess.run(
        [str(HELM / "helm"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=ANSWER_WAIT_S,
        check=False,
    )
    if done.returncode:
        raise HelmError((done.stderr + done.stdout).strip())
    return done.stdout
