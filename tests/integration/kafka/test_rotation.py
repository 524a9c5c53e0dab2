"""Secrets rotate while a flow runs, as the kubelet updates them.

Connections use the new secrets, nothing restarts, and no record is repeated.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import family, sockets_to, wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.dedicated import FACTORS, last_rebalance, wait_until_ready
from tests.integration.kafka.nodes import workers
from tests.integration.kafka.running import RunningCommand

pytestmark = pytest.mark.faults

WAIT_S = 120.0  # files are checked every five seconds
TOPIC = "orders"
FIRST = "mirror-secret"
USERS = tuple(User(name=name, password=FIRST) for name in ("mirror", "left", "right"))
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: rotating}}
spec:
  source:
    alias: vault
    bootstrapServers: ["{source}"]
    tls: {{trustedCertificates: [{{secretName: vault, key: ca.crt}}]}}
    authentication:
      type: ScramSha512
      username: {{value: mirror}}
      password: {{secretName: vault, key: password}}
  target:
    alias: safe
    bootstrapServers: ["{target}"]
    tls: {{trustedCertificates: [{{secretName: safe, key: ca.crt}}]}}
    authentication:
      type: ScramSha512
      username: {{value: mirror}}
      password: {{secretName: safe, key: password}}
  topics: {{include: [{topic}], replicationFactor: 1}}
  connectors:
    checkpoint: {{config: {{emit.checkpoints.interval.seconds: "1"}}}}
"""


@pytest.fixture(scope="module")
def vault() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="vault", listeners=("SASL_SSL",), users=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def safe() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="safe", listeners=("SASL_SSL",), users=USERS) as cluster:
        yield cluster


class MountedSecret:
    """A Secret as the kubelet mounts it. Files are links into `..data`, itself a link that is replaced atomically."""

    def __init__(self, folder: Path, **files: str) -> None:
        self._folder = folder
        self._turns = 0
        self._files = {name.replace("_", "."): text for name, text in files.items()}
        folder.mkdir(parents=True)
        self.update()
        for name in self._files:
            (folder / name).symlink_to(f"..data/{name}")

    def update(self, **files: str) -> None:
        """Replaces all files at once."""
        self._turns += 1
        self._files |= {name.replace("_", "."): text for name, text in files.items()}
        version = self._folder / f"..version_{self._turns}"
        version.mkdir()
        for name, text in self._files.items():
            (version / name).write_text(text)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")


def set_password(cluster: KafkaCluster, password: str, user: str = "mirror") -> None:
    """Makes *password* the user's only valid one on the brokers. Open connections stay open."""
    change = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), password.encode()
    )
    for future in cluster.admin.alter_user_scram_credentials([change]).values():
        future.result(WAIT_S)


def port(cluster: KafkaCluster) -> int:
    return int(cluster.bootstrap_for("SASL_SSL").rpartition(":")[2])


def warns(run: RunningCommand, phrase: str) -> bool:
    """Returns whether the source connector has a warning with *phrase*.

    The operator shows it in the condition Degraded.
    """
    return any(phrase in warning for warning in run.events("progress")[-1]["summary"]["firstWarnings"])


def all_replaced(run: RunningCommand | Replicator, cluster: KafkaCluster, before: set[str]) -> bool:
    """Returns whether no earlier connection remains and new ones exist."""
    current = sockets_to(run.pid, port(cluster))
    return bool(current) and not current & before


@pytest.fixture
def flow(vault: KafkaCluster, safe: KafkaCluster, tmp_path: Path) -> Path:
    text = FLOW.format(
        source=vault.bootstrap_for("SASL_SSL"), target=safe.bootstrap_for("SASL_SSL"), topic=TOPIC
    )
    (tmp_path / "flow.yaml").write_text(text)
    return tmp_path / "flow.yaml"


def ca(cluster: KafkaCluster) -> str:
    assert cluster.certificates is not None
    return cluster.certificates.ca_pem.read_text()


def test_passwords_and_certificates_rotate_under_load(
    vault: KafkaCluster, safe: KafkaCluster, flow: Path, tmp_path: Path
) -> None:
    """Every connection of every process is replaced, all process ids stay the same, and each record is copied once."""
    secrets = {
        "vault": MountedSecret(tmp_path / "vault", password=FIRST, ca_crt=ca(vault)),
        "safe": MountedSecret(tmp_path / "safe", password=FIRST, ca_crt=ca(safe)),
    }
    vault.create_topic(TOPIC, partitions=3)
    with (
        SteadyProducer(
            bootstrap=vault.internal_bootstrap, topics=(TOPIC,), backlog=2_000, rate=500
        ) as producer,
        RunningCommand(flow, tmp_path, "--secrets", tmp_path) as run,
    ):
        wait_until("the backlog is copied", lambda: arrived(safe) > 2_000)
        wait_until("heartbeats arrive", lambda: vault.has_topic("heartbeats"))
        pids = family(run.pid)

        for number, cluster in enumerate((safe, vault)):
            before = sockets_to(run.pid, port(cluster))
            assert before
            set_password(cluster, f"second-{number}")
            # The file of trusted certificates changes as well, to one that contains the authority twice.
            secrets[cluster.name].update(password=f"second-{number}", ca_crt=ca(cluster) * 2)
            wait_until(
                f"connections to {cluster.name} are replaced",
                partial(all_replaced, run, cluster, before),
            )
        so_far = arrived(safe)
        wait_until("copying continues", lambda: arrived(safe) > so_far + 500)

        # A wrong password is reported. Open connections stay open, and copying continues.
        before = sockets_to(run.pid, port(safe))
        secrets["safe"].update(password="third-wrong")
        wait_until("the wrong password is reported", lambda: "cannot be used" in run.log.read_text())
        wait_until("the connector has a warning", partial(warns, run, "cannot be used"))
        so_far = arrived(safe)
        wait_until("copying continues", lambda: arrived(safe) > so_far + 500)
        assert before & sockets_to(run.pid, port(safe))

        # With the correct password the flow recovers, even if every earlier connection is closed.
        set_password(safe, "fourth")
        secrets["safe"].update(password="fourth")
        wait_until("all connections are replaced", partial(all_replaced, run, safe, before))
        safe.broker(1).stop()
        safe.broker(1).start()
        so_far = arrived(safe)
        wait_until("copying continues", lambda: arrived(safe) > so_far + 500)
        producer.stop()
        wait_until("all records are copied", lambda: arrived(safe) >= producer.acknowledged)

        assert pids == family(run.pid)
        assert [1] == [event["starts"] for event in run.events("started")]
        assert 130 == run.stop(), run.output()

    assert_copied(vault, TOPIC, safe, f"vault.{TOPIC}", count=producer.acknowledged)
    assert not any(word in run.output() for word in ("second-", "third-wrong", "fourth"))


def nodes_file(vault: KafkaCluster, safe: KafkaCluster, topic: str) -> dict[str, str]:
    """Returns an mm2.properties for several nodes. Each node reads user and password from its own folder."""
    lines = {
        "clusters": "kept, held",
        "kept->held.enabled": "true",
        "kept->held.topics": topic,
        "config.providers": "file, dir",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "held.session.timeout.ms": "6000",
        "tasks.max": "4",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "offset-syncs.topic.location": "target",
        **dict.fromkeys(FACTORS, "1"),
    }
    for alias, cluster in (("kept", vault), ("held", safe)):
        assert cluster.certificates is not None
        lines |= {
            f"{alias}.bootstrap.servers": cluster.bootstrap_for("SASL_SSL"),
            f"{alias}.security.protocol": "SASL_SSL",
            f"{alias}.sasl.mechanism": "SCRAM-SHA-512",
            f"{alias}.sasl.jaas.config": (
                f'{SCRAM} username="${{file:who.properties:name}}" password="${{dir:{cluster.name}:password}}";'
            ),
            f"{alias}.ssl.truststore.type": "PEM",
            f"{alias}.ssl.truststore.location": str(cluster.certificates.ca_pem),
        }
    return lines


def test_a_rotation_on_one_node_restarts_and_rebalances_no_node(
    vault: KafkaCluster, safe: KafkaCluster, tmp_path: Path
) -> None:
    """Both nodes share one file but have different users and passwords. The secrets of one node rotate."""
    topic, copy, connector = "shared", "kept.shared", quote("kept->held.MirrorSourceConnector", safe="")
    vault.create_topic(topic, partitions=4)
    load(vault, topic, 400)
    nodes, passwords = [], {}
    for name in ("left", "right"):
        passwords[name] = MountedSecret(tmp_path / name / "vault", password=FIRST)
        MountedSecret(tmp_path / name / "safe", password=FIRST)
        (tmp_path / name / "who.properties").write_text(f"name={name}\n")
        node = Replicator.mm2(nodes_file(vault, safe, topic), folder=tmp_path)
        node.name, node.directory = name, tmp_path / name
        nodes.append(node)
    with nodes[0] as left, nodes[1] as right:
        for node in nodes:
            wait_until_ready(node)
        wait_until(
            "both nodes have tasks",
            lambda: len(worker_ids := workers(left, connector)) == 4 and len(set(worker_ids.values())) == 2,
        )
        left.wait_for_copy(safe, copy, 400)

        rebalances = [last_rebalance(node) for node in nodes]
        configs = safe.end_offsets("mm2-configs.kept.internal")
        pids = [set(family(node.pid)) for node in nodes]
        connections, rotated_connections = (sockets_to(node.pid, port(vault)) for node in nodes)
        set_password(vault, "another", user="right")
        passwords["right"].update(password="another")
        wait_until(
            "the connections of the rotated node are replaced",
            partial(all_replaced, right, vault, rotated_connections),
        )
        load(vault, topic, 400)
        left.wait_for_copy(safe, copy, 800)
        assert connections <= sockets_to(left.pid, port(vault))
        assert [True, True] == [
            before <= set(family(node.pid)) for before, node in zip(pids, nodes, strict=True)
        ]
        assert rebalances == [last_rebalance(node) for node in nodes]
        assert configs == safe.end_offsets("mm2-configs.kept.internal")
        assert [0, 0] == [node.stop() for node in nodes]
    assert_copied(vault, topic, safe, copy, count=800)


def arrived(cluster: KafkaCluster) -> int:
    """Returns the number of records in the copy."""
    topic = f"vault.{TOPIC}"
    return cluster.total_end_offset(topic)
