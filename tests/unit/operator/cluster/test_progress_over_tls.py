"""Pods of a flow with a certificate serve progress over TLS, and the operator verifies the certificate.

The replicator's HTTP server starts with the properties of a planned ConfigMap, and the operator's client polls it.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.cluster.progress_client import (
    CaBundle,
    PollTarget,
    TlsParameters,
    request_progress,
    session,
)
from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT, SecretLayout
from mirrorflow_operator.status.pod_reports import PollFailure, Reading
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.worker_properties import load_distributed, load_standalone
from mirrorflow_replicator.http.server import HttpServer
from mirrorflow_replicator.http.server_tls import server_context
from tests.unit.http.reports import connector, view
from tests.unit.kafka.certificates import authority, signed
from tests.unit.operator.observations import mirror_flow

SECRET = "east-to-west-rest"
HOST = "east-to-west-source.mirrors.svc"
SPEC: dict[str, Any] = {"internalRest": {"tls": {"secretName": SECRET}}}


@pytest.fixture
def layout(tmp_path: Path) -> SecretLayout:
    """Returns a folder with the Secret, as the kubelet mounts it."""
    folder = tmp_path / "secrets" / SECRET
    folder.mkdir(parents=True)
    own = signed(HOST, names=(HOST,))
    (folder / "tls.crt").write_text(own.pem)
    (folder / "tls.key").write_text(own.key_pem())
    (folder / "ca.crt").write_text(authority().pem)
    return SecretLayout(secrets=str(tmp_path / "secrets"), config_maps=str(tmp_path / "config-maps"))


def _planned(layout: SecretLayout, kind: str, *, verifies: bool = True, **spec: Any) -> Object:
    flow = mirror_flow(**SPEC, **spec)
    planned_objects = objects(flow, plan(flow, POD_LAYOUT), image="x:1", verifies=verifies)
    planned = next(
        item
        for item in planned_objects
        if item["kind"] == kind and item["metadata"]["name"] == "east-to-west-source"
    )
    with_local_paths: Object = json.loads(json.dumps(planned).replace(POD_LAYOUT.secrets, layout.secrets))
    return with_local_paths


def _readings(planned: Object, *parameters: TlsParameters) -> list[Reading]:
    """Starts a server with the planned properties, and returns the operator's reading with each of *parameters*."""
    data = planned["data"]
    is_shared = "dedicated.mode.enable.internal.rest" in data["worker.properties"]
    load = load_distributed if is_shared else load_standalone
    settings = load(data["worker.properties"], [data["connector.properties"]])
    resolved = Resolver(settings.providers).resolve_client(settings.http.tls)
    own, _ = server_context(resolved)
    auth = settings.http.others_client_auth
    others, _ = server_context({**resolved, "ssl.client.auth": auth}) if auth is not None else (None, ())
    main_context = others if settings.http.internal and others is not None else own  # as in the worker
    listeners = [
        f"{address.rpartition(':')[0]}:0".replace("0.0.0.0", "127.0.0.1")
        for address in settings.http.listeners
    ]

    async def main() -> list[Reading]:
        server = await HttpServer.start(
            listeners, lambda: view(connector()), tls=main_context, others_tls=others
        )
        port = int(server.addresses[-1].rpartition(":")[2])
        try:
            async with session() as client:
                targets = [PollTarget(uid="x", host="127.0.0.1", port=port, tls=tls) for tls in parameters]
                return [await request_progress(client, target, now_s=0.0) for target in targets]
        finally:
            await server.close()

    return asyncio.run(main())


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_operator_polls_over_tls_and_verifies_the_name_of_the_connector(
    layout: SecretLayout, tmp_path: Path, replicas: int
) -> None:
    """With several pods only the internal listener requires client certificates."""
    connectors = {"source": {"replicas": replicas, "tasks": replicas}}
    planned = _planned(layout, "ConfigMap", connectors=connectors)
    configured_ca = CaBundle(file=str(tmp_path / "secrets" / SECRET / "ca.crt"))
    (tmp_path / "unknown.crt").write_text(authority("Another CA").pem)
    unknown_ca = CaBundle(file=str(tmp_path / "unknown.crt"))

    trusted, wrong_name, untrusted = _readings(
        planned,
        configured_ca.tls_parameters(HOST),
        configured_ca.tls_parameters("other.mirrors.svc"),
        unknown_ca.tls_parameters(HOST),
    )

    assert trusted.summary is not None
    assert (wrong_name.failure, untrusted.failure) == (PollFailure.REFUSED, PollFailure.REFUSED)


def test_a_tls_pod_is_annotated_and_probed_over_tls(layout: SecretLayout) -> None:
    template = _planned(layout, "Deployment")["spec"]["template"]
    container = template["spec"]["containers"][0]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]

    assert {probe["scheme"] for probe in probes} == {"HTTPS"}
    assert template["metadata"]["annotations"][names.SCHEME_ANNOTATION] == "https"
    assert any(volume.get("secret", {}).get("secretName") == SECRET for volume in template["spec"]["volumes"])


def test_without_a_ca_pods_serve_plain_http(layout: SecretLayout) -> None:
    """Without a CA, the operator could not verify a certificate."""
    worker = parse_properties(_planned(layout, "ConfigMap", verifies=False)["data"]["worker.properties"])
    template = _planned(layout, "Deployment", verifies=False)["spec"]["template"]

    assert worker["mirrorflow.http.listeners"] == "http://0.0.0.0:8080"
    assert names.SCHEME_ANNOTATION not in template["metadata"]["annotations"]


def test_a_renewed_ca_is_used_and_an_invalid_file_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(authority().pem)
    ca_bundle = CaBundle(file=str(file))
    first = ca_bundle.tls_parameters(HOST)

    file.write_text("no certificate")
    with_invalid_file = ca_bundle.tls_parameters(HOST)
    file.write_text(authority("Another CA").pem)
    renewed = ca_bundle.tls_parameters(HOST)

    assert with_invalid_file == first
    assert [certificate["subject"] for certificate in renewed.context.get_ca_certs()] != [
        certificate["subject"] for certificate in first.context.get_ca_certs()
    ]
    assert ca_bundle.tls_parameters(HOST) == renewed


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_the_operator_does_not_start_with_an_unreadable_ca(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)

    with pytest.raises(SettingsError, match="MIRRORFLOW_PROGRESS_CA"):
        CaBundle(file=str(file))
