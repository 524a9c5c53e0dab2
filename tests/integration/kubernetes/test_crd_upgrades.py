"""Objects that were stored before a rule of the CRD existed, and break it: their statuses are written after the upgrade.

The API server validates the whole object when a status is written. It leaves out what is as it was (ratcheting, since Kubernetes 1.30),
and these tests fail if one of our rules is not left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.conftest import DEFINITIONS, wait_until_established

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="hunter2";'
LOGIN = {"type": "Custom", "config": {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN}}
CLUSTERS = {
    "source": {"alias": "east", "bootstrapServers": ["kafka-east:9092"]},
    "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]},
}
STORED = {
    "mirrorflow/plain-secret": {**CLUSTERS, "source": {**CLUSTERS["source"], "authentication": LOGIN}},
    # Rules on the entries of a list, of which the server compares none with an earlier one.
    "mirrorflow/list-entries": {
        **CLUSTERS,
        "topics": {"include": ["orders, payments", "*", "orders, payments"]},
    },
    "mirrorflow/whole-spec": {**CLUSTERS, "target": {**CLUSTERS["target"], "alias": "east"}},
    # A rule on the whole object, which changes with its status.
    "mirrorflow/1-with-two-pods": {**CLUSTERS, "connectors": {"source": {"replicas": 2}}},
    "mirrorpair/plain-secret": {
        "members": {"east": {"flow": "east-to-west", "probe": LOGIN}, "west": {"flow": "west-to-east"}},
        "fence": {"method": "DenyAcl"},
    },
    "switchover/accepted-loss": {"pair": "east-west", "to": "west", "type": "Planned", "acceptLoss": True},
}
KINDS = {"mirrorflow": "MirrorFlow", "mirrorpair": "MirrorPair", "switchover": "Switchover"}


def without_rules(schema: Any) -> Any:
    """Returns *schema* as before it had rules, formats and bounds."""
    if isinstance(schema, list):
        return [without_rules(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {"x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "pattern"}
    return {name: without_rules(entry) for name, entry in schema.items() if name not in left_out}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """The namespace default of an API server whose CRDs the operator has updated after STORED was created."""
    folder = tmp_path_factory.mktemp("upgraded")
    with ApiServer(folder=folder, controllers=False) as server:
        for path in DEFINITIONS.iterdir():
            definition = yaml.safe_load(path.read_text())
            for version in definition["spec"]["versions"]:
                version["schema"] = without_rules(version["schema"])
            server.kubectl.apply(definition)
        wait_until_established(server)
        for name, spec in STORED.items():
            server.kubectl.apply(manifest(name, spec))
        user = server.user("operator", groups=["system:masters"])
        with OperatorProcess(kubeconfig=user.kubeconfig, folder=Path(folder)) as operator:
            operator.wait_until_leading()
            yield server.kubectl


def manifest(name: str, spec: Any) -> dict[str, Any]:
    kind, _, name = name.partition("/")
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": KINDS[kind],
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize("name", STORED)
def test_an_object_that_breaks_a_newer_rule_has_a_status_that_names_it(upgraded: Kubectl, name: str):
    def reported() -> str:
        status = upgraded.get(*name.split("/")).get("status") or {}
        return next(
            (
                condition["message"]
                for condition in status.get("conditions") or ()
                if condition["type"] in {"Accepted", "Succeeded"} and condition["status"] == "False"
            ),
            "",
        )

    assert re.search(r"(spec|metadata)\.", wait_until("the status names the field", reported))
    with pytest.raises(KubectlError, match=r"is invalid|duplicate entries"):
        upgraded.apply(manifest(f"{name}-again", STORED[name]))
