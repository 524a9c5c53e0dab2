"""Starts everything with unique marked secrets, and searches for them in topics, logs, HTTP, processes and commands."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from mirrorflow_core.java.properties import format_properties
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import HarnessError, family, wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.groups import put_group
from tests.integration.kafka.running import RunningCommand

pytestmark = pytest.mark.more

WAIT_S = 90.0
MONITOR_INTERVAL_S = 30.0
TOPIC = "orders"
MARK = f"marked-{uuid.uuid4().hex[:12]}"  # the searched text; each secret consists of this mark and a word
PASSWORD, OTHER, STORE, WRONG, LISTENER, CLIENT = (
    f"{MARK}-{word}" for word in ("password", "other", "store", "wrong", "https", "client")
)
FLOW_NAME = "hidden-%3Eburied.MirrorSourceConnector"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
CONNECTORS = ("MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector")
QUICK = {
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "sync.group.offsets.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
}
PATHS = (
    "/", "/health", "/connectors", "/connectors?expand=status&expand=info", "/connector-plugins", "/admin/loggers",
    "/progress", "/progress/partitions", "/metrics", "/healthz", "/readyz", "/nowhere",
    *(f"/connector-plugins/{name}/config" for name in CONNECTORS),
)  # fmt: skip
OF_CONNECTOR = ("", "/config", "/status", "/tasks", "/tasks-config", "/offsets", "/topics", "/tasks/0/status")
FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: marked}}
spec:
  source:
    alias: hidden
    bootstrapServers: ["{source}"]
    tls: {{trustedCertificates: [{{secretName: of, key: source.crt}}]}}
    authentication: {{type: ScramSha512, username: {{value: mirror}}, password: {{secretName: of, key: password}}}}
  target:
    alias: buried
    bootstrapServers: ["{target}"]
    tls: {{trustedCertificates: [{{secretName: of, key: target.crt}}]}}
    authentication:
      type: Custom
      sasl: false
      config:
        ssl.keystore.type: PKCS12
        ssl.keystore.location: {folder}/client.p12
        ssl.keystore.password: "${{dir:{folder}/of:store}}"
        ssl.key.password: "${{dir:{folder}/of:store}}"
  topics: {{include: [{topic}], replicationFactor: 1}}
  connectors:
    source: {{config: {{mirrorflow.flow: "hidden->buried"}}}}
    checkpoint: {{config: {{emit.checkpoints.interval.seconds: "1", sync.group.offsets.interval.seconds: "1"}}}}
"""


@dataclass(frozen=True, kw_only=True)
class MarkedClusters:
    """Both clusters, and client properties with the marked secrets."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path

    def of_source(self, password: str) -> dict[str, str]:
        assert self.source.certificates is not None
        return {
            "bootstrap.servers": self.source.bootstrap_for("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} username="mirror" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.source.certificates.ca_pem),
        }

    def of_target(self, store: str) -> dict[str, str]:
        assert self.target.certificates is not None
        return {
            "bootstrap.servers": self.target.bootstrap_for("MTLS"),
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.target.certificates.ca_pem),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.folder / "client.p12"),
            "ssl.keystore.password": store,
            "ssl.key.password": store,
        }

    def mm2(self, password: str) -> dict[str, str]:
        """Returns an mm2.properties with its secrets in plain text, which many users have."""
        return {
            "clusters": "hidden, buried",
            **{f"hidden.{key}": value for key, value in self.of_source(password).items()},
            **{f"buried.{key}": value for key, value in self.of_target(STORE).items()},
            "hidden->buried.enabled": "true",
            "hidden->buried.topics": TOPIC,
            "listeners.https.ssl.keystore.password": LISTENER,
            **QUICK,
        }


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarkedClusters]:
    """A source with password authentication, and a target with client certificates in a password-protected store."""
    folder = tmp_path_factory.mktemp("marked")
    source = KafkaCluster(
        name="hidden",
        listeners=("SASL_SSL",),
        users=(User(password=PASSWORD), User(name="mirror2", password=OTHER)),
    )
    target = KafkaCluster(name="buried", listeners=("MTLS",))
    with source, target:
        assert source.certificates is not None
        assert target.certificates is not None
        kept = target.certificates
        key, own, chain = pkcs12.load_key_and_certificates(
            kept.client_p12.read_bytes(), kept.password.encode()
        )
        sealed = BestAvailableEncryption(STORE.encode())
        assert isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey)
        (folder / "client.p12").write_bytes(
            pkcs12.serialize_key_and_certificates(b"mirror", key, own, chain, sealed)
        )
        (folder / "of").mkdir()
        for name, text in {
            "password": PASSWORD,
            "store": STORE,
            "source.crt": source.certificates.ca_pem.read_text(),
            "target.crt": kept.ca_pem.read_text(),
        }.items():
            (folder / "of" / name).write_text(text)
        (folder / "secrets.properties").write_text(format_properties({"password": PASSWORD, "store": STORE}))
        source.create_topic(TOPIC, partitions=2)
        load(source, TOPIC, 300, keys=True)
        put_group(source, "readers", {(TOPIC, 0): 10})
        yield MarkedClusters(source=source, target=target, folder=folder)


def all_records(cluster: KafkaCluster) -> Iterator[tuple[str, bytes]]:
    """Yields the bytes of each record of each topic, including internal topics."""
    partitions = [(topic, number) for topic, count in cluster.topics().items() for number in range(count)]
    consumer = Consumer(
        {"bootstrap.servers": cluster.internal_bootstrap, "group.id": "looks", "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in partitions])
        open_ = set(partitions)
        while open_:
            message = consumer.poll(MONITOR_INTERVAL_S)
            assert message is not None, f"{open_} cannot be read to the end"
            if message.error():
                open_.discard((message.topic(), message.partition()))
                continue
            headers = b"".join(name.encode() + (value or b"") for name, value in message.headers() or ())
            yield message.topic(), (message.key() or b"") + (message.value() or b"") + headers
    finally:
        consumer.close()


def assert_nowhere(texts: Mapping[str, str]) -> None:
    """Asserts that no text has the mark. An empty text fails, because it proves nothing."""
    assert all(texts.values()), [name for name, text in texts.items() if not text]
    assert [] == [
        f"{name}: {text[max(0, text.index(MARK) - 200) :][:300]}"
        for name, text in texts.items()
        if MARK in text
    ]


def assert_not_in_topics(clusters: MarkedClusters, *, but: str = "no topic") -> None:
    record_counts: dict[str, int] = {}
    for cluster in (clusters.source, clusters.target):
        for topic, data in all_records(cluster):
            record_counts[topic] = record_counts.get(topic, 0) + 1
            assert topic.startswith(but) or MARK.encode() not in data, f"{topic} of {cluster.name}: {data!r}"
    written = ("mm2-offset-syncs.", "mm2-claims.", "mm2-offsets.", "hidden.checkpoints.", "heartbeats")
    assert all(any(topic.startswith(name) for topic in record_counts) for name in written), record_counts


def http(url: str, path: str, *, method: str = "GET", body: object = None) -> str:
    """Returns status, headers and body of any response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}{path}", data=data, method=method, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return f"{response.status} {response.headers} {response.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers} {error.read().decode()}"


def http_responses(url: str, configs: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns all HTTP reads, validations of *configs*, and refused calls."""
    texts = {path: http(url, path) for path in PATHS}
    for name in json.loads(http(url, "/connectors").rpartition("\n\n ")[2] or "[]"):
        texts |= {
            f"{name}{path_suffix}": http(url, f"/connectors/{name}{path_suffix}")
            for path_suffix in OF_CONNECTOR
        }
    for case, config in configs.items():
        path = "/connector-plugins/MirrorSourceConnector/config/validate"
        texts[f"validate {case}"] = http(url, path, method="PUT", body=config)
    texts["unreadable"] = http(
        url, "/connector-plugins/MirrorSourceConnector/config/validate", method="PUT", body=[PASSWORD]
    )
    return texts


def processes(pid: int) -> dict[str, str]:
    """Returns arguments and environment of *pid* and its descendants. Every user of the host can see the arguments."""
    texts = {}
    for member in family(pid):
        for name in ("cmdline", "environ"):
            texts[f"{name} of {member}"] = Path(f"/proc/{member}/{name}").read_text(errors="replace") or "-"
    return texts


def wrong_configs(clusters: MarkedClusters) -> dict[str, dict[str, str]]:
    """Returns configurations for validation: a valid one, and some with errors near the secrets."""
    valid = {
        "name": "MirrorSourceConnector",
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "hidden",
        **{f"source.cluster.{key}": value for key, value in clusters.of_source(PASSWORD).items()},
        **{f"target.cluster.{key}": value for key, value in clusters.of_target(STORE).items()},
    }
    jaas, store = "source.cluster.sasl.jaas.config", "target.cluster.ssl.keystore.password"
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    return {
        "right": valid,
        "no semicolon": valid | {jaas: f'{SCRAM} username="mirror" password="{PASSWORD}"'},
        "no quote": valid | {jaas: f'{SCRAM} username="mirror" password="{PASSWORD};'},
        "no module": valid | {jaas: f'username="mirror" password="{PASSWORD}";'},
        "password alone": valid | {jaas: PASSWORD},
        "client": valid | {jaas: f'{oauth} clientId="me" clientSecret="{CLIENT}";'},
        "wrong mechanism": valid | {"source.cluster.sasl.mechanism": "GSSAPI"},
        "wrong store": valid | {store: f"{STORE}-not"},
        "overrides": valid
        | {"producer.override.sasl.jaas.config": f'{SCRAM} username="x" password="{PASSWORD}";'},
        "comment": valid | {store: f"{STORE}  # the store"},
        "wrong number": valid | {"tasks.max": "many"},
    }


def mirrorflow(*arguments: str | Path) -> str:
    command = Path(sys.executable).parent / "mirrorflow"
    result = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return f"{result.returncode}\n{result.stdout}\n{result.stderr}"


def wait_for_all(clusters: MarkedClusters, url: str) -> None:
    """Waits until all three connectors run and the group is translated."""

    def all_written() -> bool:
        return clusters.target.has_topic("hidden.checkpoints.internal") and all(
            clusters.target.end_offsets(topic).get(0, 0)
            for topic in ("hidden.checkpoints.internal", "heartbeats", f"hidden.{TOPIC}")
        )

    wait_until("copies, checkpoints and heartbeats are written", all_written)
    wait_until("the process is ready", lambda: http(url, "/readyz").startswith("200"))


def test_no_secret_is_shown_by_run_and_other_commands(clusters: MarkedClusters, tmp_path: Path) -> None:
    """A MirrorFlow has its secrets in files.

    The test searches the process, its files, and the output of each command.
    """
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        FLOW.format(
            source=clusters.source.bootstrap_for("SASL_SSL"),
            target=clusters.target.bootstrap_for("MTLS"),
            folder=clusters.folder,
            topic=TOPIC,
        )
    )
    file_arguments = ("-f", flow, "--secrets", clusters.folder)
    with RunningCommand(flow, tmp_path, "--secrets", clusters.folder) as run:
        url = wait_until("the process listens", lambda: listening(run.log))
        wait_for_all(clusters, url)
        texts = http_responses(url, wrong_configs(clusters)) | processes(run.pid)
        assert 130 == run.stop(), run.output()
    texts["run"] = "".join(file.read_text() for file in tmp_path.glob("run.*")) + run.log.read_text()
    for name in ("validate", "plan", "check", "acls", "export"):
        texts[name] = mirrorflow(name, *(file_arguments if name != "validate" else file_arguments[:2]))
    for name in ("checkpoints", "offset-syncs", "positions"):
        texts[f"dump {name}"] = mirrorflow("dump", name, *file_arguments)
    assert_nowhere(texts)
    assert_not_in_topics(clusters)


def listening(log: Path) -> str:
    text = log.read_text() if log.exists() else ""
    return text.partition("listening on ")[2].partition("\n")[0]


def test_no_secret_is_shown_for_mm2_properties_in_plain_text(
    clusters: MarkedClusters, tmp_path: Path
) -> None:
    """As in Java, only the config topics have them. The log warns about their keys, and conversion omits them."""
    lines = clusters.mm2(PASSWORD)
    with Replicator.mm2(lines, folder=tmp_path) as replicator:
        wait_for_all(clusters, replicator.url)
        texts = http_responses(replicator.url, wrong_configs(clusters)) | processes(replicator.pid)
        assert 0 == replicator.stop()
        texts["log"] = replicator.log_text()
    (tmp_path / "mm2.properties").write_text(format_properties(lines))
    texts["convert"] = mirrorflow("convert", tmp_path / "mm2.properties")
    texts["convert --json"] = mirrorflow("convert", "--json", tmp_path / "mm2.properties")
    assert_nowhere(texts)
    assert_not_in_topics(clusters, but="mm2-configs.")
    secrets = "buried.ssl.key.password, buried.ssl.keystore.password, hidden.sasl.jaas.config"
    assert f"{secrets}: in plain text" in texts["log"]
    # The topics would keep them, and the tests below search every topic.
    for cluster, alias in ((clusters.target, "hidden"), (clusters.source, "buried")):
        cluster.delete_topic(f"mm2-configs.{alias}.internal")


def test_no_secret_is_shown_by_a_distributed_worker(clusters: MarkedClusters, tmp_path: Path) -> None:
    """Its topics keep references. Responses to writing calls, including refused ones, show no secret."""
    file = clusters.folder / "secrets.properties"
    worker = {
        **clusters.of_target(STORE),
        "group.id": "hidden-mm2",
        "offset.storage.topic": "mm2-offsets.hidden.internal",
        "config.storage.topic": "hidden-configs",
        "status.storage.topic": "hidden-status",
        "mirrorflow.http.listeners": "http://127.0.0.1:0",
        "rest.modify.enable": "true",
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        **{key: value for key, value in QUICK.items() if "storage" in key},
    }
    shared = {
        "source.cluster.alias": "hidden",
        "target.cluster.alias": "buried",
        "topics": TOPIC,
        **{
            f"source.cluster.{key}": value
            for key, value in clusters.of_source(f"${{file:{file}:password}}").items()
        },
        **{
            f"target.cluster.{key}": value
            for key, value in clusters.of_target(f"${{file:{file}:store}}").items()
        },
        **{key: value for key, value in QUICK.items() if "storage" not in key},
    }
    with Replicator(form="distributed", files=(worker,), folder=tmp_path) as replicator:
        url, texts = replicator.url, {}
        wait_until("the process is ready", lambda: http(url, "/health").startswith("200"))
        for name in CONNECTORS:
            body = {"name": name, "config": {**shared, "connector.class": name}}
            texts[f"POST {name}"] = http(url, "/connectors", method="POST", body=body)
            assert texts[f"POST {name}"].startswith("201"), texts
        for case, config in wrong_configs(clusters).items():
            if case not in {"right", "client", "overrides"}:
                body = {"name": "other", "config": {**config, "name": "other", "tasks.max": "many"}}
                texts[f"POST {case}"] = http(url, "/connectors", method="POST", body=body)
                assert texts[f"POST {case}"].startswith("400"), texts[f"POST {case}"]
        wait_for_all(clusters, url)
        texts |= http_responses(url, wrong_configs(clusters)) | processes(replicator.pid)
        assert 0 == replicator.stop()
        texts["log"] = replicator.log_text()
    assert_nowhere(texts)
    assert_not_in_topics(clusters)


def test_no_secret_is_shown_by_processes_that_share_references(
    clusters: MarkedClusters, tmp_path: Path
) -> None:
    """Each process resolves them by itself. The shared topics, including task configs, keep the references."""
    jaas = f'{SCRAM} username="${{env:WHO}}" password="${{env:WORD}}";'
    lines = {
        **clusters.mm2("${env:WORD}"),
        **{f"buried.{key}": value for key, value in clusters.of_target("${env:STORE}").items()},
        "hidden.sasl.jaas.config": jaas,
        "buried.ssl.key.password": "${env:STORE}",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "tasks.max": "2",
    }
    del lines["listeners.https.ssl.keystore.password"]
    users = ({"WHO": "mirror", "WORD": PASSWORD}, {"WHO": "mirror2", "WORD": OTHER})
    nodes = [Replicator.mm2(lines, folder=tmp_path, environment={**user, "STORE": STORE}) for user in users]
    texts: dict[str, str] = {}
    with nodes[0] as first, nodes[1] as second:
        second.name = "other"
        for node in (first, second):
            wait_for_all(clusters, node.url)
        for node in (first, second):
            texts |= {f"{node.name} {case}": text for case, text in http_responses(node.url, {}).items()}
            texts[f"{node.name} arguments"] = processes(node.pid)[f"cmdline of {node.pid}"]
            wait_until(
                f"{node.name} reports both tasks",
                lambda url=node.url: (  # type: ignore[misc]
                    2 == len(json.loads(http(url, f"/connectors/{FLOW_NAME}/tasks").rpartition("\n\n")[2]))
                ),
            )
        assert [0, 0] == [node.stop() for node in nodes]
        texts |= {f"log of {node.name}": node.log_text() for node in nodes}
    assert_nowhere(texts)
    assert_not_in_topics(clusters)
    written: dict[str, list[bytes]] = {}
    for topic, data in all_records(clusters.target):
        written.setdefault(topic, []).append(data)
    assert any(b"MirrorSourceConnector" in data for data in written["mm2-status.hidden.internal"])
    tasks = [
        data
        for data in written["mm2-configs.hidden.internal"]
        if data.startswith(b"task-MirrorSourceConnector-")
    ]
    assert tasks
    assert all(b"${env:WORD}" in data and b"${env:STORE}" in data for data in tasks)


def test_no_secret_is_shown_after_a_refused_login(clusters: MarkedClusters, tmp_path: Path) -> None:
    """The broker's message is reported, but not the password."""
    with Replicator.mm2(clusters.mm2(WRONG), folder=tmp_path) as replicator:
        wait_until(
            "the refusal is reported", lambda: "SCRAM-SHA-512 authentication failed" in replicator.log_text()
        )
        texts = http_responses(replicator.url, wrong_configs(clusters))
        assert 0 == replicator.stop()
        texts["log"] = replicator.log_text()
    assert_nowhere(texts)


def test_no_secret_is_shown_for_invalid_files(clusters: MarkedClusters, tmp_path: Path) -> None:
    """The process ends or continues without that cluster. In both cases no message has the value."""
    worker = {**clusters.of_target(STORE), "mirrorflow.http.listeners": "http://127.0.0.1:0", **QUICK}
    texts = {}
    for case, config in wrong_configs(clusters).items():
        if case == "right":
            continue
        with Replicator(form="standalone", files=(worker, config), folder=tmp_path / case) as replicator:
            wait_until(
                f"{case}: the process has reported a problem, ended or started",
                partial(has_reacted, replicator),
            )
            texts[case] = replicator.log_text()
    assert_nowhere(texts)


def has_reacted(replicator: Replicator) -> bool:
    """Returns whether the process has ended, logged a warning, or become ready."""
    if not replicator.running or "WARNING" in replicator.log_text():
        return True
    try:
        return http(replicator.url, "/readyz").startswith("200")
    except HarnessError:  # the process has already ended
        return not replicator.running
