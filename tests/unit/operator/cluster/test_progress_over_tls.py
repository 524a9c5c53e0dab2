"""A flow with a certificate and an operator with its CA: the planned pods serve TLS, and the operator verifies it.

Both sides are real: the properties of a planned ConfigMap start the replicator's server, which the operator's client polls.
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
from mirrorflow_operator.plan.properties import POD_LAYOUT, SecretLayout, plan
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
    """A folder as the kubelet mounts it."""
    folder = tmp_path / "secrets" / SECRET
    folder.mkdir(parents=True)
    own = signed(HOST, names=(HOST,))
    (folder / "tls.crt").write_text(own.pem)
    (folder / "tls.key").write_text(own.key_pem())
    (folder / "ca.crt").write_text(authority().pem)
    return SecretLayout(secrets=str(tmp_path / "secrets"), config_maps=str(tmp_path / "config-maps"))


def _planned(layout: SecretLayout, kind: str, *, verifies: bool = True, **spec: Any) -> Object:
    flow = mirror_flow(**SPEC, **spec)
    found = objects(flow, plan(flow, POD_LAYOUT), image="x:1", verifies=verifies)
    one = next(
        one for one in found if one["kind"] == kind and one["metadata"]["name"] == "east-to-west-source"
    )
    here: Object = json.loads(json.dumps(one).replace(POD_LAYOUT.secrets, layout.secrets))
    return here


def _readings(planned: Object, *parameters: TlsParameters) -> list[Reading]:
    """Starts a server with the planned properties; returns the operator's reading with each of *parameters*."""
    data = planned["data"]
    is_shared = "dedicated.mode.enable.internal.rest" in data["worker.properties"]
    load = load_distributed if is_shared else load_standalone
    settings = load(data["worker.properties"], [data["connector.properties"]])
    resolved = Resolver(settings.providers).resolve_client(settings.http.tls)
    own, _ = server_context(resolved)
    auth = settings.http.others_client_auth
    others, _ = server_context({**resolved, "ssl.client.auth": auth}) if auth else (None, ())
    shown = others if settings.http.internal and others is not None else own  # as the worker does
    listeners = [
        f"{one.rpartition(':')[0]}:0".replace("0.0.0.0", "127.0.0.1") for one in settings.http.listeners
    ]

    async def main() -> list[Reading]:
        server = await HttpServer.start(listeners, lambda: view(connector()), tls=shown, others_tls=others)
        port = int(server.addresses[-1].rpartition(":")[2])
        try:
            async with session() as client:
                targets = [PollTarget(uid="x", host="127.0.0.1", port=port, tls=one) for one in parameters]
                return [await request_progress(client, target, now_s=0.0) for target in targets]
        finally:
            await server.close()

    return asyncio.run(main())


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_operator_reads_progress_over_tls_and_verifies_the_connectors_name(
    layout: SecretLayout, tmp_path: Path, replicas: int
) -> None:
    """With several pods, the internal listener requires client certificates; this one does not."""
    connectors = {"source": {"replicas": replicas, "tasks": replicas}}
    planned = _planned(layout, "ConfigMap", connectors=connectors)
    ours = CaBundle(file=str(tmp_path / "secrets" / SECRET / "ca.crt"))
    (tmp_path / "another.crt").write_text(authority("Another CA").pem)
    another_ca = CaBundle(file=str(tmp_path / "another.crt"))

    trusted, wrong_name, untrusted = _readings(
        planned,
        ours.tls_parameters(HOST),
        ours.tls_parameters("another.mirrors.svc"),
        another_ca.tls_parameters(HOST),
    )

    assert trusted.summary is not None
    assert (wrong_name.failure, untrusted.failure) == (PollFailure.REFUSED, PollFailure.REFUSED)


def test_a_tls_pod_is_annotated_and_probed_over_tls(layout: SecretLayout) -> None:
    template = _planned(layout, "Deployment")["spec"]["template"]
    container = template["spec"]["containers"][0]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]

    assert {one["scheme"] for one in probes} == {"HTTPS"}
    assert template["metadata"]["annotations"][names.SCHEME_ANNOTATION] == "https"
    assert any(one.get("secret", {}).get("secretName") == SECRET for one in template["spec"]["volumes"])


def test_without_a_ca_pods_serve_plain_http(layout: SecretLayout) -> None:
    """The operator could not verify a certificate."""
    worker = parse_properties(_planned(layout, "ConfigMap", verifies=False)["data"]["worker.properties"])
    template = _planned(layout, "Deployment", verifies=False)["spec"]["template"]

    assert worker["mirrorflow.http.listeners"] == "http://0.0.0.0:8080"
    assert names.SCHEME_ANNOTATION not in template["metadata"]["annotations"]


def test_a_renewed_ca_is_used_and_a_broken_file_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(authority().pem)
    ca_bundle = CaBundle(file=str(file))
    first = ca_bundle.tls_parameters(HOST)

    file.write_text("no certificate")
    broken = ca_bundle.tls_parameters(HOST)
    file.write_text(authority("Another CA").pem)
    renewed = ca_bundle.tls_parameters(HOST)

    assert broken == first
    assert [one["subject"] for one in renewed.context.get_ca_certs()] != [
        one["subject"] for one in first.context.get_ca_certs()
    ]
    assert ca_bundle.tls_parameters(HOST) == renewed


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unreadable_ca_prevents_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)

    with pytest.raises(SettingsError, match="MIRRORFLOW_PROGRESS_CA"):
        CaBundle(file=str(file))
