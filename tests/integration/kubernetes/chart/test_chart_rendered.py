"""The objects that Helm renders from the chart in each mode.

The tests check permissions, names, security, and errors for wrong values.
"""

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import names
from mirrorflow_operator.settings import SEED_ACCOUNT, from_environment
from tests.harness.kubernetes import chart
from tests.harness.kubernetes.chart import CHART, NAMESPACE, OPERATOR, Manifest, Values, rendered, rules_of
from tests.harness.kubernetes.helm import HelmError

pytestmark = pytest.mark.usefixtures("with_helm")
EVERYTHING: Values = {
    "monitors": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True},
    "dashboards": {"enabled": True},
    "progressTls": {"secretName": "mirrors-ca", "key": "ca.pem"},
    "networkPolicy": {"egress": [{"ports": [{"port": 443}]}]},
    "imagePullSecrets": ["registry"],
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"team": "kafka"},
    "commonLabels": {"cost-center": "42"},
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
}
MODES: dict[str, Values] = {
    "own": chart.OWN_NAMESPACE,
    "several": chart.SEVERAL_NAMESPACES,
    "cluster": chart.WHOLE_CLUSTER,
    "everything": {**EVERYTHING, **chart.WHOLE_CLUSTER},
}
FORBIDDEN = {
    "secrets",
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
    "pods/exec",
    "serviceaccounts/token",
}


@functools.cache
def _rendered_in(mode: str) -> list[Manifest]:
    return rendered(MODES[mode])


def _object(manifests: list[Manifest], kind: str, name: str = OPERATOR) -> Manifest:
    return next(
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    )


def _pods(manifests: list[Manifest]) -> Iterator[dict[str, Any]]:
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif manifest["kind"] == "Deployment":
            yield manifest["spec"]["template"]["spec"]


@pytest.mark.parametrize("mode", MODES)
def test_helm_lint_reports_no_problem(mode: str):
    """It reports no warnings either."""
    report = chart.helm(
        "lint",
        str(CHART),
        f"--kube-version={chart.KUBERNETES}",
        "--strict",
        "--values=-",
        stdin=yaml.safe_dump(MODES[mode]),
    )

    assert "0 chart(s) failed" in report
    assert "[WARNING]" not in report


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_may_do_nothing_with_secrets_roles_or_shells(mode: str):
    """Its rules contain neither these resources nor a wildcard."""
    rules = rules_of(_rendered_in(mode))

    assert rules
    for rule in rules:
        assert not FORBIDDEN & set(rule["resources"])
        assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


def test_the_documented_permissions_match_the_chart():
    """A security review reads docs/security.md. Its table therefore has exactly the granted verbs."""
    text = (CHART.parents[1] / "docs" / "security.md").read_text()
    table = text.partition("## What the operator may do")[2].partition("\n\nIn its own namespace")[0]
    documented = {
        resource: set(re.findall(r"[a-z]+", re.sub("of (one|three) names?", "", verbs)))
        for resources, verbs in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
        for resource in re.findall(r"`([a-z/]+)`", resources)
    }
    granted: dict[str, set[str]] = {}
    for rule in rules_of(_rendered_in("own")):
        for resource in rule["resources"]:
            granted[resource] = granted.get(resource, set()) | set(rule["verbs"])

    assert documented == granted


def test_permissions_are_granted_only_where_mirrorflows_are_reconciled():
    """Each mode has its own kind of role and its namespaces, but the same rules."""
    roles_by_mode = {}
    for mode in ("own", "several", "cluster"):
        roles = [
            manifest
            for manifest in _rendered_in(mode)
            if manifest["kind"] in {"Role", "ClusterRole"}
            and any("deployments" in rule["resources"] for rule in manifest["rules"])
        ]
        roles_by_mode[mode] = [(role["kind"], role["metadata"].get("namespace")) for role in roles]
        assert all(role["rules"] == roles[0]["rules"] for role in roles)

    assert roles_by_mode == {
        "own": [("Role", NAMESPACE)],
        "several": [("Role", "kafka-east"), ("Role", "kafka-west")],
        "cluster": [("ClusterRole", None)],
    }


@pytest.mark.parametrize(
    ("mode", "namespaces"),
    [("own", (NAMESPACE,)), ("several", ("kafka-east", "kafka-west")), ("cluster", ())],
)
def test_the_operator_accepts_every_variable_of_its_deployment(mode: str, namespaces: tuple[str, ...]):
    """It reads each variable of the Deployment, and accepts its value."""
    container = next(iter(_pods(_rendered_in(mode))))["containers"][0]
    variables = {variable["name"]: variable.get("value", "from-the-pod") for variable in container["env"]}
    settings = from_environment(variables)

    assert settings.namespaces == namespaces
    assert (settings.replicator_image, settings.replicator_versions) == ("mirrorflow/replicator", ("0.1.0",))
    assert (settings.lease, settings.listener_host, settings.listener_port) == (OPERATOR, "0.0.0.0", 8080)
    assert (settings.pod_namespace, settings.pod_name) == ("from-the-pod", "from-the-pod")
    assert settings == from_environment(
        {name: variables[name] for name in ("POD_NAME", "POD_NAMESPACE", "MIRRORFLOW_NAMESPACES")}
    )


def test_the_operator_also_supports_the_previous_replicator_version(tmp_path: Path):
    """Otherwise an upgrade would leave flows with a version that the new operator does not offer."""
    manifests = chart.rendered(chart=chart.chart_after("0.2.0", tmp_path))
    container = next(iter(_pods(manifests)))["containers"][0]
    versions = [
        variable["value"]
        for variable in container["env"]
        if variable["name"] == "MIRRORFLOW_REPLICATOR_VERSIONS"
    ]

    assert versions == ["0.2.0,0.1.0"]


@pytest.mark.parametrize("mode", MODES)
def test_every_pod_meets_the_restricted_standard(mode: str):
    """Its root file system is read-only.

    Its volumes are a bounded folder for Python and, if set, a certificate authority of connectors.
    """
    pods = list(_pods(_rendered_in(mode)))

    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert [list(volume) for volume in pod.get("volumes", ()) if volume["name"] != "progress-ca"] in (
            [],
            [["name", "emptyDir"]],
        )
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("mode", MODES)
def test_the_network_policy_of_each_flow_allows_the_operator(mode: str):
    """It allows only the pods of this operator, in a namespace that needs no label."""
    deployment = next(item for item in _rendered_in(mode) if item["kind"] == "Deployment")
    operator_labels = deployment["spec"]["template"]["metadata"]["labels"]

    _, peer = names.progress_readers(NAMESPACE)

    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    assert peer["podSelector"]["matchLabels"].items() <= operator_labels.items()


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        (chart.OWN_NAMESPACE, [NAMESPACE]),
        (chart.SEVERAL_NAMESPACES, ["kafka-east", "kafka-west"]),
        (chart.WHOLE_CLUSTER, []),
    ],
)
def test_further_readers_are_allowed_to_connect_to_connectors_in_known_namespaces(
    values: Values, namespaces: list[str]
):
    """They may connect to every pod of a flow, including drivers of Spark jobs."""
    reader = {"podSelector": {"matchLabels": {"app": "scraper"}}}
    policies = [
        manifest
        for manifest in rendered({**values, "networkPolicy": {"from": [reader]}})
        if manifest["kind"] == "NetworkPolicy" and manifest["metadata"]["name"].endswith("-connectors")
    ]

    assert [policy["metadata"]["namespace"] for policy in policies] == namespaces
    for policy in policies:
        assert policy["spec"]["ingress"][0]["from"] == [reader]
        selected = policy["spec"]["podSelector"]["matchLabels"]
        assert selected.items() <= names.labels("east-to-west", ConnectorKind.SOURCE).items()
        assert selected.items() <= names.run_labels("east-to-west", "seed").items()
        assert {"http", "progress"} == {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}


def test_operator_replicas_spread_over_nodes_without_a_zone_label():
    """On a node that lacks the label of one constraint, the scheduler ignores all spread constraints.

    Therefore zones are a preferred affinity.
    """
    zone = {"topologyKey": "topology.kubernetes.io/zone"}

    pod = _object(rendered(), "Deployment")["spec"]["template"]["spec"]
    with_own_affinity = _object(rendered({"affinity": {"nodeAffinity": {}}}), "Deployment")["spec"][
        "template"
    ]["spec"]

    (spread,) = pod["topologySpreadConstraints"]
    (preferred,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert preferred["podAffinityTerm"] == {"labelSelector": spread["labelSelector"], **zone}
    assert with_own_affinity["affinity"] == {"nodeAffinity": {}}


def test_names_and_labels_can_be_set():
    """Every object has the common labels. The only fixed names are those that must be equal in every release."""
    manifests = rendered({"nameOverride": "mirrors", "commonLabels": {"cost-center": "42"}})
    with_long_name = rendered({"nameOverride": "m" * 20}, namespace="x")

    assert [] == [
        manifest for manifest in manifests if manifest["metadata"]["labels"].get("cost-center") != "42"
    ]
    assert {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Deployment"} == {
        "mirrorflow-mirrors-operator"
    }
    assert all(len(manifest["metadata"]["name"]) <= 63 for manifest in with_long_name)
    [deployment] = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    assert "cost-center" not in deployment["spec"]["selector"]["matchLabels"]


def test_two_releases_share_no_cluster_wide_object():
    """A cluster-wide object has the release's namespace in its name. Every name has a valid length."""
    first, second = rendered(namespace="a"), rendered(namespace="b")
    cluster_wide = [
        {
            (manifest["kind"], manifest["metadata"]["name"])
            for manifest in release
            if "namespace" not in manifest["metadata"]
        }
        for release in (first, second)
    ]

    assert cluster_wide[0] & cluster_wide[1] == set()
    with_long_name = rendered({"fullnameOverride": "a" * 40})
    assert all(
        len(manifest["metadata"]["name"]) <= 63
        for manifest in with_long_name
        if manifest["kind"] in {"Service", "Pod", "Deployment"}
    )


def test_the_crd_is_not_part_of_a_release():
    """Therefore Helm installs the CRD but never reverts or deletes it.

    The operator updates it unless the values forbid this.
    """
    crd_resource = {"customresourcedefinitions"}

    assert "CustomResourceDefinition" not in {manifest["kind"] for manifest in _rendered_in("own")}
    assert any(crd_resource == set(rule["resources"]) for rule in rules_of(_rendered_in("own")))
    assert not any(
        crd_resource & set(rule["resources"]) for rule in rules_of(rendered({"crds": {"enabled": False}}))
    )


def test_an_upgrade_reuses_the_values_of_an_earlier_chart(tmp_path: Path):
    """Such values lack newer settings."""
    reused = Path(shutil.copytree(CHART, tmp_path / "chart"))
    shutil.copy(Path(__file__).parent / "earlier-values.yaml", reused / "values.yaml")

    actual = {
        f"{manifest['kind']} {manifest['metadata']['name']}": manifest for manifest in rendered(chart=reused)
    }
    expected = {f"{manifest['kind']} {manifest['metadata']['name']}": manifest for manifest in rendered()}

    assert actual == expected


def test_the_secrets_policy_contains_the_mount_path_of_secrets():
    """The chart's policy and the Python code both contain the folder."""
    from mirrorflow_operator.plan.secret_layout import POD_LAYOUT

    policy = _object(_rendered_in("own"), "ValidatingAdmissionPolicy", f"{NAMESPACE}-{OPERATOR}-secrets")

    assert f"'{POD_LAYOUT.secrets}/'" in json.dumps(policy)


def test_every_value_has_a_description():
    """Each value in the schema has a description, and values.yaml has exactly these values."""
    nodes = [json.loads((CHART / "values.schema.json").read_text())]
    while nodes:
        node = nodes.pop()
        for name, value in node.get("properties", {}).items():
            assert value.get("description"), name
            nodes.append(value)
        if "properties" in node and "items" not in node and node.get("additionalProperties") is not False:
            assert "name" in node["properties"], (
                "only Kubernetes' own objects may have fields that are not listed"
            )
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(defaults)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"wtach": {}}, "additional properties 'wtach' not allowed"),
        ({"watch": {"namespace": ["a"]}}, "at '/watch': additional properties 'namespace' not allowed"),
        ({"watch": {"namespaces": ["A_B"]}}, "at '/watch/namespaces/0'"),
        ({"watch": {"namespaces": "a"}}, "at '/watch/namespaces': got string, want array"),
        ({"pollSeconds": "30s"}, "at '/pollSeconds': got string, want integer"),
        ({"pollSeconds": 0}, "at '/pollSeconds': minimum"),
        ({"logLevel": "TRACE"}, "at '/logLevel': value must be one of"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"replicator": {"repository": "a b"}}, "at '/replicator/repository'"),
        ({"env": [{"name": "MIRRORFLOW_LEASE", "value": "x"}]}, "at '/env/0/name'"),
        ({"alerts": {"disabled": ["lag"]}}, "at '/alerts/disabled/0'"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        (
            {"watch": {"namespaces": ["a"], "cluster": True}},
            "watch.namespaces and watch.cluster are both set",
        ),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is missing"),
    ],
    ids=lambda values: json.dumps(values)[:40] if isinstance(values, dict) else "",
)
def test_an_error_names_a_wrong_value(values: dict[str, Any], sentence: str):
    """Helm refuses the value before it installs anything."""
    with pytest.raises(HelmError) as refused:
        rendered(values)

    assert sentence in str(refused.value)


def test_an_old_kubernetes_version_is_refused():
    """The error contains the required version."""
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.30"):
        chart.helm("template", "x", str(CHART), "--kube-version=1.29.0")


def test_helms_test_pod_has_no_permissions():
    """No role is bound to the account of the pod."""
    pod = next(item for item in rendered() if item["kind"] == "Pod")
    account = pod["spec"]["serviceAccountName"]
    bound = [
        manifest["metadata"]["name"]
        for manifest in rendered()
        if manifest["kind"].endswith("Binding")
        and any(subject["name"] == account for subject in manifest.get("subjects", ()))
    ]

    assert bound == []
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


@pytest.mark.parametrize("kind", ["secretName", "configMapName"])
def test_the_connectors_certificate_authority_is_mounted_without_permission_for_secrets(kind: str):
    """The operator has no permission for Secrets. Its variable points to the mounted file."""
    manifests = rendered({"progressTls": {kind: "mirrors-ca"}})
    pod = _object(manifests, "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    settings = from_environment(
        {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    )
    mount = next(item for item in container["volumeMounts"] if item["name"] == "progress-ca")
    volume = next(item for item in pod["volumes"] if item["name"] == "progress-ca")

    assert settings.progress_ca == f"{mount['mountPath']}/ca.crt"
    assert "mirrors-ca" in json.dumps(volume)
    assert "secrets" not in json.dumps(
        [manifest for manifest in manifests if manifest["kind"] in {"Role", "ClusterRole"}]
    )


def test_without_a_certificate_authority_the_operator_reads_connectors_over_http():
    env = _object(_rendered_in("own"), "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]

    assert "MIRRORFLOW_PROGRESS_CA" not in {variable["name"] for variable in env}


def test_two_certificate_authorities_are_refused():
    with pytest.raises(HelmError, match="progressTls"):
        rendered({"progressTls": {"secretName": "a", "configMapName": "b"}})


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        (chart.OWN_NAMESPACE, [NAMESPACE]),
        (chart.SEVERAL_NAMESPACES, ["kafka-east", "kafka-west"]),
        (chart.WHOLE_CLUSTER, []),
        ({**chart.WHOLE_CLUSTER, "seed": {"namespaces": ["team"]}}, ["team"]),
        ({"seed": {"serviceAccount": {"create": False}}}, []),
    ],
    ids=["own", "several", "cluster", "cluster-named", "elsewhere"],
)
def test_spark_drivers_have_only_the_permissions_that_spark_needs(values: Values, namespaces: list[str]):
    """They may use pods in the namespaces of flows. The operator plans their accounts and lacks these permissions."""
    manifests = [manifest for manifest in rendered(values) if manifest["metadata"]["name"] == SEED_ACCOUNT]
    roles = [manifest for manifest in manifests if manifest["kind"] == "Role"]

    assert {kind: namespaces for kind in ("ServiceAccount", "Role", "RoleBinding") if namespaces} == {
        kind: [manifest["metadata"]["namespace"] for manifest in manifests if manifest["kind"] == kind]
        for kind in {manifest["kind"] for manifest in manifests}
    }
    for role in roles:
        assert role["rules"] == [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
            }
        ]
    deployment = next(manifest for manifest in rendered(values) if manifest["kind"] == "Deployment")
    variables = {
        variable["name"]: variable.get("value")
        for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["MIRRORFLOW_SEED_SERVICE_ACCOUNT"] == SEED_ACCOUNT
    assert variables["MIRRORFLOW_SEED_IMAGE"] == "mirrorflow/seed"


NUMBERS: Values = {
    **EVERYTHING,
    "watch": {"namespaces": ["789", "no"]},
    "progressTls": {"configMapName": "12", "key": "34"},
    "imagePullSecrets": ["34"],
    "priorityClassName": "56",
    "serviceAccount": {"name": "78"},
    "seed": {"serviceAccount": {"name": "90"}},
    "console": {
        "enabled": True,
        "hosts": ["0x10"],
        "results": [{"namespace": "789", "claimName": "12"}],
    },
    "switchovers": {"endpoints": [{"flows": ["1", "2"], "configMap": "3", "namespace": "no"}]},
}


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each scalar of a field that Kubernetes has as text, with its path."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _texts(below, f"{path}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from _texts(below, path)
    elif re.search(r"(?i)(name|namespace|key|value|path|labels\\.[^ ]+|resourceNames)$", path):
        yield path, value


def test_names_that_yaml_takes_for_numbers_stay_names():
    """A namespace may be 2026 or no, and the API server refuses a number or a boolean."""
    manifests = rendered(NUMBERS, namespace="2026")

    wrong = {
        (manifest["kind"], path, value)
        for manifest in manifests
        for path, value in _texts(manifest)
        if not isinstance(value, str)
    }

    assert not wrong
    assert {"2026", "789", "no"} == {
        manifest["metadata"]["namespace"] for manifest in manifests if "namespace" in manifest["metadata"]
    }
