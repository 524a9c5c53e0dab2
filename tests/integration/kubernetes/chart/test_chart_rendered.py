"""What Helm makes of the chart in each mode: rights, names, security, and a word on each wrong value."""

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
def _of(mode: str) -> list[Manifest]:
    return rendered(MODES[mode])


def _one(manifests: list[Manifest], kind: str, name: str = OPERATOR) -> Manifest:
    return next(one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)


def _pods(manifests: list[Manifest]) -> Iterator[dict[str, Any]]:
    for one in manifests:
        if one["kind"] == "Pod":
            yield one["spec"]
        elif one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]


@pytest.mark.parametrize("mode", MODES)
def test_helm_finds_nothing_wrong(mode: str):
    """Not even a warning."""
    said = chart.helm(
        "lint",
        str(CHART),
        f"--kube-version={chart.KUBERNETES}",
        "--strict",
        "--values=-",
        stdin=yaml.safe_dump(MODES[mode]),
    )

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_may_do_nothing_with_secrets_roles_or_shells(mode: str):
    """By name, and by no wildcard either."""
    rules = rules_of(_of(mode))

    assert rules
    for rule in rules:
        assert not FORBIDDEN & set(rule["resources"])
        assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


def test_the_documents_list_the_rights_as_they_are():
    """docs/security.md is what a security review reads: no verb more or less."""
    text = (CHART.parents[1] / "docs" / "security.md").read_text()
    table = text.partition("## What the operator may do")[2].partition("\n\nIn its own namespace")[0]
    told = {
        resource: set(re.findall(r"[a-z]+", verbs.replace("of one name", "")))
        for resources, verbs in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
        for resource in re.findall(r"`([a-z/]+)`", resources)
    }
    granted: dict[str, set[str]] = {}
    for rule in rules_of(_of("own")):
        for resource in rule["resources"]:
            granted[resource] = granted.get(resource, set()) | set(rule["verbs"])

    assert told == granted


def test_rights_are_given_where_mirrorflows_are_looked_after_and_nowhere_else():
    """Each mode by the kind of role and its namespaces; the same rules in all."""
    found = {}
    for mode in ("own", "several", "cluster"):
        roles = [
            one
            for one in _of(mode)
            if one["kind"] in {"Role", "ClusterRole"}
            and any("deployments" in rule["resources"] for rule in one["rules"])
        ]
        found[mode] = [(one["kind"], one["metadata"].get("namespace")) for one in roles]
        assert all(one["rules"] == roles[0]["rules"] for one in roles)

    assert found == {
        "own": [("Role", NAMESPACE)],
        "several": [("Role", "kafka-east"), ("Role", "kafka-west")],
        "cluster": [("ClusterRole", None)],
    }


@pytest.mark.parametrize(
    ("mode", "namespaces"),
    [("own", (NAMESPACE,)), ("several", ("kafka-east", "kafka-west")), ("cluster", ())],
)
def test_the_operator_reads_its_settings(mode: str, namespaces: tuple[str, ...]):
    """Each variable of the Deployment is one that it knows, with a value that it takes."""
    container = next(iter(_pods(_of(mode))))["containers"][0]
    variables = {one["name"]: one.get("value", "from-the-pod") for one in container["env"]}
    settings = from_environment(variables)

    assert settings.namespaces == namespaces
    assert (settings.replicator_image, settings.replicator_versions) == ("mirrorflow/replicator", ("0.1.0",))
    assert (settings.lease, settings.listener_host, settings.listener_port) == (OPERATOR, "0.0.0.0", 8080)
    assert (settings.pod_namespace, settings.pod_name) == ("from-the-pod", "from-the-pod")
    assert settings == from_environment(
        {name: variables[name] for name in ("POD_NAME", "POD_NAMESPACE", "MIRRORFLOW_NAMESPACES")}
    )


def test_the_operator_runs_the_release_before_it_too(tmp_path: Path):
    """Else an upgrade would leave every flow with a version that the new operator does not have."""
    found = chart.rendered(chart=chart.chart_after("0.2.0", tmp_path))
    container = next(iter(_pods(found)))["containers"][0]
    versions = [one["value"] for one in container["env"] if one["name"] == "MIRRORFLOW_REPLICATOR_VERSIONS"]

    assert versions == ["0.2.0,0.1.0"]


@pytest.mark.parametrize("mode", MODES)
def test_every_pod_is_held_to_the_restricted_standard(mode: str):
    """And to a read-only root; the only volume is a bounded folder for Python; and, if asked for, an authority of connectors."""
    pods = list(_pods(_of(mode)))

    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert [list(one) for one in pod.get("volumes", ()) if one["name"] != "progress-ca"] in (
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
def test_each_flows_own_policy_admits_the_operator(mode: str):
    """Its own pods and no others of its namespace, which needs no label."""
    deployment = next(one for one in _of(mode) if one["kind"] == "Deployment")
    operators = deployment["spec"]["template"]["metadata"]["labels"]

    _, peer = names.progress_readers(NAMESPACE)

    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    assert peer["podSelector"]["matchLabels"].items() <= operators.items()


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        (chart.OWN_NAMESPACE, [NAMESPACE]),
        (chart.SEVERAL_NAMESPACES, ["kafka-east", "kafka-west"]),
        (chart.WHOLE_CLUSTER, []),
    ],
)
def test_further_readers_are_admitted_to_connectors_where_their_namespaces_are_known(
    values: Values, namespaces: list[str]
):
    """To every pod of a flow, drivers of Spark jobs among them."""
    reader = {"podSelector": {"matchLabels": {"app": "scraper"}}}
    policies = [
        one
        for one in rendered({**values, "networkPolicy": {"from": [reader]}})
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"].endswith("-connectors")
    ]

    assert [one["metadata"]["namespace"] for one in policies] == namespaces
    for one in policies:
        assert one["spec"]["ingress"][0]["from"] == [reader]
        selected = one["spec"]["podSelector"]["matchLabels"]
        assert selected.items() <= names.labels("east-to-west", ConnectorKind.SOURCE).items()
        assert selected.items() <= names.run_labels("east-to-west", "seed").items()
        assert {"http", "progress"} == {port["port"] for port in one["spec"]["ingress"][0]["ports"]}


def test_replicas_of_the_operator_spread_over_nodes_without_a_zone():
    """The scheduler ignores every constraint on a node that lacks the label of one: zones are an affinity, which it does not."""
    zone = {"topologyKey": "topology.kubernetes.io/zone"}

    pod = _one(rendered(), "Deployment")["spec"]["template"]["spec"]
    own = _one(rendered({"affinity": {"nodeAffinity": {}}}), "Deployment")["spec"]["template"]["spec"]

    (spread,) = pod["topologySpreadConstraints"]
    (preferred,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert preferred["podAffinityTerm"] == {"labelSelector": spread["labelSelector"], **zone}
    assert own["affinity"] == {"nodeAffinity": {}}


def test_names_and_labels_can_be_set():
    """Every object has the labels; no name of the chart's is left but those that are the same in every release."""
    found = rendered({"nameOverride": "mirrors", "commonLabels": {"cost-center": "42"}})
    longest = rendered({"nameOverride": "m" * 20}, namespace="x")

    assert [] == [one for one in found if one["metadata"]["labels"].get("cost-center") != "42"]
    assert {one["metadata"]["name"] for one in found if one["kind"] == "Deployment"} == {
        "mirrorflow-mirrors-operator"
    }
    assert all(len(one["metadata"]["name"]) <= 63 for one in longest)
    [deployment] = [one for one in found if one["kind"] == "Deployment"]
    assert "cost-center" not in deployment["spec"]["selector"]["matchLabels"]


def test_two_releases_do_not_meet():
    """What belongs to no namespace carries the release's own in its name; every name has room."""
    one, other = rendered(namespace="a"), rendered(namespace="b")
    of_the_cluster = [
        {
            (thing["kind"], thing["metadata"]["name"])
            for thing in release
            if "namespace" not in thing["metadata"]
        }
        for release in (one, other)
    ]

    assert of_the_cluster[0] & of_the_cluster[1] == set()
    longest = rendered({"fullnameOverride": "a" * 40})
    assert all(
        len(one["metadata"]["name"]) <= 63
        for one in longest
        if one["kind"] in {"Service", "Pod", "Deployment"}
    )


def test_the_definition_is_no_part_of_a_release():
    """So Helm installs it, and neither takes it back nor deletes it; the operator updates it, unless it must not."""
    right = {"customresourcedefinitions"}

    assert "CustomResourceDefinition" not in {one["kind"] for one in _of("own")}
    assert any(right == set(rule["resources"]) for rule in rules_of(_of("own")))
    assert not any(
        right & set(rule["resources"]) for rule in rules_of(rendered({"crds": {"enabled": False}}))
    )


def test_an_upgrade_reuses_the_values_of_an_earlier_chart(tmp_path: Path):
    """Helm then has no value that is new since, and refuses none that was removed."""
    reused = Path(shutil.copytree(CHART, tmp_path / "chart"))
    shutil.copy(Path(__file__).parent / "values-of-1a40a54.yaml", reused / "values.yaml")

    found = {f"{one['kind']} {one['metadata']['name']}": one for one in rendered(chart=reused)}
    wanted = {f"{one['kind']} {one['metadata']['name']}": one for one in rendered()}

    assert found == wanted


def test_the_secrets_policy_knows_where_pods_mount_secrets():
    """The folder is written in two languages."""
    from mirrorflow_operator.plan.properties import POD_LAYOUT

    policy = _one(_of("own"), "ValidatingAdmissionPolicy", f"{NAMESPACE}-{OPERATOR}-secrets")

    assert f"'{POD_LAYOUT.secrets}/'" in json.dumps(policy)


def test_values_are_described_each():
    """In the schema and, in the same words, nowhere contradicted by a default that it refuses (Helm checks those)."""
    nodes = [json.loads((CHART / "values.schema.json").read_text())]
    while nodes:
        node = nodes.pop()
        for name, one in node.get("properties", {}).items():
            assert one.get("description"), name
            nodes.append(one)
        if "properties" in node and "items" not in node and node.get("additionalProperties") is not False:
            assert "name" in node["properties"], (
                "only Kubernetes' own objects may have fields that are not listed"
            )
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    removed = {name for name, one in schema["properties"].items() if one["description"].startswith("Removed")}
    assert set(schema["properties"]) - {"global"} - removed == set(defaults)


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
    ids=lambda one: json.dumps(one)[:40] if isinstance(one, dict) else "",
)
def test_a_wrong_value_is_named(values: dict[str, Any], sentence: str):
    """Before anything is installed."""
    with pytest.raises(HelmError) as refused:
        rendered(values)

    assert sentence in str(refused.value)


def test_an_old_kubernetes_is_refused():
    """With the version that it would need."""
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.30"):
        chart.helm("template", "x", str(CHART), "--kube-version=1.29.0")


def test_helms_test_asks_with_no_right_of_its_own():
    """Its account is bound to nothing, and its pod has no other."""
    pod = next(one for one in rendered() if one["kind"] == "Pod")
    account = pod["spec"]["serviceAccountName"]
    bound = [
        one["metadata"]["name"]
        for one in rendered()
        if one["kind"].endswith("Binding") and any(who["name"] == account for who in one.get("subjects", ()))
    ]

    assert bound == []
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


@pytest.mark.parametrize("kind", ["secretName", "configMapName"])
def test_the_authority_of_connectors_is_mounted_and_never_asked_for(kind: str):
    """The operator has no right on Secrets; it finds the file where its variable says."""
    found = rendered({"progressTls": {kind: "mirrors-ca"}})
    pod = _one(found, "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    settings = from_environment({one["name"]: one["value"] for one in container["env"] if "value" in one})
    mount = next(one for one in container["volumeMounts"] if one["name"] == "progress-ca")
    volume = next(one for one in pod["volumes"] if one["name"] == "progress-ca")

    assert settings.progress_ca == f"{mount['mountPath']}/ca.crt"
    assert "mirrors-ca" in json.dumps(volume)
    assert "secrets" not in json.dumps([one for one in found if one["kind"] in {"Role", "ClusterRole"}])


def test_without_an_authority_connectors_are_asked_over_plain_http():
    env = _one(_of("own"), "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]

    assert "MIRRORFLOW_PROGRESS_CA" not in {one["name"] for one in env}


def test_two_authorities_are_refused():
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
def test_drivers_of_spark_jobs_may_do_what_spark_asks_for_and_nothing_else(
    values: Values, namespaces: list[str]
):
    """Pods, in the namespaces of flows; who they are is what the operator plans, and the operator has no such right."""
    manifests = [one for one in rendered(values) if one["metadata"]["name"] == SEED_ACCOUNT]
    roles = [one for one in manifests if one["kind"] == "Role"]

    assert {kind: namespaces for kind in ("ServiceAccount", "Role", "RoleBinding") if namespaces} == {
        kind: [one["metadata"]["namespace"] for one in manifests if one["kind"] == kind]
        for kind in {one["kind"] for one in manifests}
    }
    for role in roles:
        assert role["rules"] == [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
            }
        ]
    deployment = next(one for one in rendered(values) if one["kind"] == "Deployment")
    variables = {
        one["name"]: one.get("value")
        for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["MIRRORFLOW_SEED_SERVICE_ACCOUNT"] == SEED_ACCOUNT
    assert variables["MIRRORFLOW_SEED_IMAGE"] == "mirrorflow/seed"
