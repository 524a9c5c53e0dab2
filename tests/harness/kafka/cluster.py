"""Real Kafka for tests: a KRaft cluster of one or three nodes that starts in seconds and removes its files.

        with KafkaCluster(name="east", brokers=3, listeners=("PLAINTEXT", "SASL_SSL")) as east:
            east.create_topic("orders", partitions=4, replication_factor=3)
            east.broker(east.leader("orders", 0)).kill()

Node ids are 1, 2, 3; each is broker and controller. A release that needs ZooKeeper has one node, which runs it. Data and ports stay the same over a node's restarts. Clients of PLAINTEXT
and of the internal listener are `User:ANONYMOUS`, a super user: with `authorizer=True`, only clients of other listeners
can be refused.
"""

import base64
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.harness.kafka.broker import METADATA_WAIT_S, Broker
from tests.harness.kafka.certificates import Certificates, make_certificates
from tests.harness.kafka.installation import (
    QUICK_JVM,
    VERSION,
    needs_zookeeper,
    release_number,
    require_installation,
    write_properties,
)
from tests.harness.kafka.leaders import call_leaders
from tests.harness.kafka.listeners import (
    LOOPBACK,
    SECURITY_PROTOCOLS,
    User,
    address_of,
    client_properties,
    java_client_properties,
    listener_properties,
    scram_arguments,
)
from tests.harness.kafka.processes import HarnessError, free_port, wait_until
from tests.harness.kafka.proxy import Proxy, Route
from tests.harness.kafka.refusing_proxy import RefusingProxy

ADMIN_WAIT_S = 30.0


@dataclass(kw_only=True, slots=True)
class KafkaCluster:
    """A Kafka cluster on this machine. *config* overrides broker properties; *users* exist on every SASL listener.

    *proxied* adds a PLAINTEXT listener that is reached only through `proxy(id)`, or through a proxy that takes the API keys
    *refused_apis* away. Clients such as pods reach *listeners* at
    *address*, one of this machine's; the harness uses 127.0.0.1. *advertised_host* is the host name that brokers advertise
    instead of *address*.
    """

    brokers: int = 1
    version: str = VERSION
    listeners: Sequence[str] = ("PLAINTEXT",)
    config: Mapping[str, str] = field(default_factory=dict)
    name: str = "kafka"
    users: tuple[User, ...] = (User(),)
    authorizer: bool = False
    proxied: bool = False
    refused_apis: Collection[int] = ()
    address: str = LOOPBACK
    advertised_host: str = ""
    heap_mib: int = 256
    jvm_options: Sequence[str] = QUICK_JVM
    folder: Path | None = None
    cluster_id: str = field(init=False)
    certificates: Certificates | None = field(default=None, init=False)
    proxy_child: Proxy | None = field(default=None, init=False)
    refusing: RefusingProxy | None = field(default=None, init=False)
    nodes: dict[int, Broker] = field(default_factory=dict, init=False)
    _ports: dict[int, dict[str, int]] = field(default_factory=dict, init=False)
    _admins: dict[tuple[int, ...], AdminClient] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Formats and starts every node, and returns when each node has all nodes in its metadata."""
        require_installation(self.version)
        if needs_zookeeper(self.version) and self.brokers > 1:
            raise HarnessError(f"Kafka {self.version} runs with one broker here, which also runs ZooKeeper.")
        self.folder = Path(tempfile.mkdtemp(prefix=f"mirrorflow-{self.name}-"))
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        try:
            if any(SECURITY_PROTOCOLS[name].endswith("SSL") for name in self.listeners):
                self.certificates = make_certificates(self.folder / "certificates", address=self.address)
            metadata = "ZOOKEEPER" if needs_zookeeper(self.version) else "CONTROLLER"
            names = ("INTERNAL", metadata, *self.listeners, *(["PROXIED"] if self.proxied else []))
            self._ports = {id_: {name: free_port() for name in names} for id_ in range(1, self.brokers + 1)}
            if self.proxied:
                self._start_proxy(self.folder / "proxy.log")
            self.nodes = {id_: self._node(id_, self.folder / str(id_)) for id_ in self._ports}
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.wait_ready()
            self.wait_for_brokers(self.brokers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kills the running nodes and removes the data."""
        self._admins.clear()
        for node in self.nodes.values():
            if node.running:
                node.kill()
        if self.proxy_child is not None:
            self.proxy_child.close()
        if self.refusing is not None:
            self.refusing.child.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def home(self) -> Path:
        """Returns the folder of the running cluster, with data, logs and files of tools."""
        if self.folder is None:
            raise HarnessError(f"{self.name} was never started.")
        return self.folder

    # Addresses.

    @property
    def bootstrap(self) -> str:
        """Returns the address of the first listener."""
        return self.bootstrap_for(self.listeners[0])

    @property
    def internal_bootstrap(self) -> str:
        """Returns the address that the harness uses, without a proxy or authentication and with all permissions."""
        return self.bootstrap_for("INTERNAL")

    def bootstrap_for(self, listener: str) -> str:
        """Returns each node's address on *listener*."""
        if listener == "PROXIED":
            return ",".join(f"127.0.0.1:{self._advertised(id_)['PROXIED']}" for id_ in self._ports)
        host = address_of(listener, self.address)
        return ",".join(f"{host}:{ports[listener]}" for ports in self._ports.values())

    def client(self, listener: str, *, user: User | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
        """Returns librdkafka's properties for a connection over *listener*."""
        return {"bootstrap.servers": self.bootstrap_for(listener)} | client_properties(
            listener, user=user or self.users[0], mechanism=mechanism, certificates=self.certificates
        )

    def java_client(
        self, listener: str, *, user: User | None = None, mechanism: str = "PLAIN"
    ) -> dict[str, str]:
        """Returns the properties for a Java client or an mm2.properties."""
        return {"bootstrap.servers": self.bootstrap_for(listener)} | java_client_properties(
            listener, user=user or self.users[0], mechanism=mechanism, certificates=self.certificates
        )

    @property
    def proxied_bootstrap(self) -> str:
        """Returns the address of the proxy, which brokers also advertise."""
        return self.bootstrap_for("PROXIED")

    def proxy(self, id_: int) -> Route:
        """Returns the route to one broker for clients of `proxied_bootstrap`."""
        if self.proxy_child is None:
            raise HarnessError(f"{self.name} was started without proxied=True.")
        return self.proxy_child.routes[id_]

    @property
    def proxies(self) -> list[Route]:
        """Returns the routes to all brokers."""
        return [self.proxy(id_) for id_ in self._ports]

    # Nodes.

    def broker(self, id_: int) -> Broker:
        return self.nodes[id_]

    def wait_for_brokers(self, count: int) -> None:
        """Waits until the metadata has exactly *count* brokers, so that the controller has detected a kill."""

        def has_count() -> bool:
            try:
                return len(self.admin.list_topics(timeout=METADATA_WAIT_S).brokers) == count
            except KafkaException:
                return False

        wait_until(f"{self.name} has {count} brokers", has_count)

    def leader(self, topic: str, partition: int) -> int:
        """Returns the id of the current leader, or -1 if there is none."""
        metadata = self.admin.list_topics(topic, timeout=ADMIN_WAIT_S).topics[topic].partitions[partition]
        return int(metadata.leader)

    # Topics.

    @property
    def admin(self) -> AdminClient:
        """Returns an admin client of the nodes that respond, because a client would wait for a frozen node.

        After a restart it is a new client, because an old one reconnects only after a growing pause.
        """
        responding = {id_: node.pid for id_, node in self.nodes.items() if node.responds}
        pids = tuple(responding.values())
        if pids not in self._admins:
            addresses = ",".join(f"127.0.0.1:{self._ports[id_]['INTERNAL']}" for id_ in responding)
            self._admins = {pids: AdminClient({"bootstrap.servers": addresses, "log_level": 2})}
        return self._admins[pids]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic, waits until every partition has a leader that knows it, and returns the topic's name."""
        topic = NewTopic(name, partitions, replication_factor, config=dict(config or {}))
        self.admin.create_topics([topic])[name].result(ADMIN_WAIT_S)
        self._wait_for_partitions(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Grows *topic* to *total* partitions."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(ADMIN_WAIT_S)
        self._wait_for_partitions(topic, total)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and waits until no broker lists it."""
        self.admin.delete_topics([name])[name].result(ADMIN_WAIT_S)
        wait_until(f"{name} is gone", lambda: not self.has_topic(name))

    def delete_topics(self) -> None:
        """Deletes all topics except Kafka's own, without waiting until each broker has removed them."""
        names = [name for name in self.topics() if not name.startswith("__")]
        if names:
            for deleted in self.admin.delete_topics(names).values():
                error = deleted.exception(ADMIN_WAIT_S)
                # The metadata may be outdated.
                if error and error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise error

    def has_topic(self, name: str) -> bool:
        """Returns whether the topic exists. It requests only this topic's metadata."""
        return self.partition_count(name) > 0

    def partition_count(self, topic: str) -> int:
        """Returns the number of partitions of a topic, or 0 if it does not exist."""
        metadata = self.admin.list_topics(topic, timeout=ADMIN_WAIT_S).topics.get(topic)
        return 0 if metadata is None or metadata.error else len(metadata.partitions)

    def topics(self) -> dict[str, int]:
        """Returns the number of partitions of each topic, including internal ones."""
        return {
            name: len(topic.partitions)
            for name, topic in self.admin.list_topics(timeout=ADMIN_WAIT_S).topics.items()
        }

    def alter_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Sets *config* on the topic. Other settings stay."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(ADMIN_WAIT_S)

    def topic_config(self, topic: str) -> dict[str, str]:
        """Returns the topic's configuration, including defaults."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(ADMIN_WAIT_S)
        return {name: entry.value for name, entry in entries.items()}

    def end_offsets(self, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
        """Returns the end of each partition, which is its high watermark, or with read_committed its last stable
        offset.
        """
        return self._offsets(topic, OffsetSpec.latest(), isolation, partitions=self.partition_count(topic))

    def total_end_offset(self, topic: str) -> int:
        """Returns the sum of the partitions' ends, or 0 while the topic does not exist."""
        return sum(self.end_offsets(topic).values()) if self.has_topic(topic) else 0

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Returns the first offset that still exists in each partition."""
        return self._offsets(topic, OffsetSpec.earliest(), partitions=self.partition_count(topic))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Deletes the records of each partition *before* the given offset."""
        positions = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]

        def deleted() -> None:
            self._refresh(topic)
            for future in self.admin.delete_records(positions).values():
                future.result(ADMIN_WAIT_S)

        call_leaders(topic, deleted)

    # Permissions.

    def allow(
        self,
        operation: str,
        resource: str,
        name: str,
        *,
        user: str = "mirror",
        prefixed: bool = False,
        deny: bool = False,
    ) -> None:
        """Adds an ACL, such as `allow("READ", "TOPIC", "orders")`. The name of the cluster is "kafka-cluster"."""
        binding = _acl(operation, resource, name, user=user, prefixed=prefixed, deny=deny)
        for future in self.admin.create_acls([binding]).values():
            future.result(ADMIN_WAIT_S)

    def allow_all(self, acls: Iterable[tuple[str, str, str, bool]], *, user: str = "mirror") -> None:
        """Adds ACLs with one request. Each has an operation, a resource, a name, and whether the name is a prefix."""
        bindings = [_acl(*acl[:3], user=user, prefixed=acl[3], deny=False) for acl in acls]
        for future in self.admin.create_acls(bindings).values() if bindings else ():
            future.result(ADMIN_WAIT_S)

    def remove_acl(
        self, operation: str, resource: str, name: str, *, user: str = "mirror", deny: bool = False
    ) -> None:
        """Removes an ACL that `allow` has added."""
        binding = _acl(operation, resource, name, user=user, prefixed=False, deny=deny)
        acl_filter = AclBindingFilter(
            binding.restype,
            binding.name,
            binding.resource_pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission_type,
        )
        for future in self.admin.delete_acls([acl_filter]).values():
            future.result(ADMIN_WAIT_S)

    # Inside.

    def _refresh(self, topic: str) -> None:
        """Makes the admin client refresh its metadata, which it otherwise caches for minutes."""
        self.admin.list_topics(topic, timeout=ADMIN_WAIT_S)

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        def has_leaders() -> bool:
            partitions = self.admin.list_topics(topic, timeout=ADMIN_WAIT_S).topics[topic].partitions
            return len(partitions) == count and all(part.leader >= 0 for part in partitions.values())

        wait_until(f"{topic} has {count} partitions with leaders", has_leaders)
        if all(node.responds for node in self.nodes.values()):
            # The leader may learn of its partitions later than the broker that was queried.
            self._offsets(topic, OffsetSpec.latest(), partitions=count)

    def _node(self, id_: int, folder: Path) -> Broker:
        folder.mkdir()
        ports = self._ports[id_]
        properties = self._defaults(id_, folder)
        properties |= listener_properties(
            ports,
            address=self.address,
            advertised=self._advertised(id_),
            advertised_host=self.advertised_host or self.address,
            users=self.users,
            certificates=self.certificates,
        )
        properties |= self.config
        # `kafka-storage format` adds users since Kafka 3.5; before, SASL listeners accept PLAIN only.
        users = self.users if release_number(self.version) >= (3, 5) else ()
        return Broker(
            id=id_,
            name=f"{self.name}-{id_}",
            version=self.version,
            folder=folder,
            properties=write_properties(folder / "server.properties", properties),
            admin_port=ports["INTERNAL"],
            cluster_id=self.cluster_id,
            # A node of several log directories formats at each start, because it looks for a directory with the joined name.
            format_arguments=("--ignore-formatted", *scram_arguments(users)),
            heap_mib=self.heap_mib,
            jvm_options=self.jvm_options,
        )

    def _advertised(self, id_: int) -> dict[str, int]:
        if self.refusing is not None:
            return {"PROXIED": self.refusing.ports[id_]}
        return {"PROXIED": self.proxy(id_).port} if self.proxied else {}

    def _start_proxy(self, log: Path) -> None:
        targets = {id_: ports["PROXIED"] for id_, ports in self._ports.items()}
        if self.refused_apis:
            self.refusing = RefusingProxy.start(targets, refused=self.refused_apis, log=log)
        else:
            self.proxy_child = Proxy.start(targets, log=log)

    def _defaults(self, id_: int, folder: Path) -> dict[str, str]:
        replicas = str(min(3, self.brokers))
        properties = self._metadata_properties(id_, folder) | {
            "log.dirs": str(folder / "data"),
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "5",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": "5",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "5",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Tests kill one of several brokers, which is detected in 3 s. A single broker has 9 s, because a busy
            # machine may suspend it for that long.
            "broker.session.timeout.ms": "3000" if self.brokers > 1 else "9000",
            "broker.heartbeat.interval.ms": "500",
            "controlled.shutdown.enable": "true",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "log.cleaner.backoff.ms": "500",
            "num.network.threads": "3",
            "num.io.threads": "4",
            "background.threads": "4",
        }
        if self.authorizer:
            zookeeper = "kafka.security.authorizer.AclAuthorizer"
            kraft = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            properties |= {
                "authorizer.class.name": zookeeper if needs_zookeeper(self.version) else kraft,
                "super.users": "User:ANONYMOUS",
            }
        return properties

    def _metadata_properties(self, id_: int, folder: Path) -> dict[str, str]:
        """Returns the properties that locate the cluster's metadata, and writes ZooKeeper's file, which Broker.java
        reads.
        """
        if needs_zookeeper(self.version):
            port = self._ports[id_]["ZOOKEEPER"]
            zookeeper = {
                "dataDir": str(folder / "zookeeper"),
                "clientPort": str(port),
                "clientPortAddress": LOOPBACK,
                "admin.enableServer": "false",
                "4lw.commands.whitelist": "dump",
                # The session of a killed node must end soon, because its successor waits for that.
                "tickTime": "500",
            }
            write_properties(folder / "zookeeper.properties", zookeeper)
            return {
                "broker.id": str(id_),
                "zookeeper.connect": f"{LOOPBACK}:{port}",
                "zookeeper.session.timeout.ms": "6000",
            }
        voters = ",".join(f"{node}@127.0.0.1:{ports['CONTROLLER']}" for node, ports in self._ports.items())
        return {
            "process.roles": "broker,controller",
            "node.id": str(id_),
            "controller.quorum.voters": voters,
        }

    def _offsets(
        self, topic: str, spec: OffsetSpec, isolation: str = "read_uncommitted", *, partitions: int
    ) -> dict[int, int]:
        level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )

        def listed() -> dict[int, int]:
            self._refresh(topic)
            futures = self.admin.list_offsets(
                {TopicPartition(topic, part): spec for part in range(partitions)},
                isolation_level=level,
                request_timeout=ADMIN_WAIT_S,
            )
            return {part.partition: future.result(ADMIN_WAIT_S).offset for part, future in futures.items()}

        return call_leaders(topic, listed)


def _acl(operation: str, resource: str, name: str, *, user: str, prefixed: bool, deny: bool) -> AclBinding:
    return AclBinding(
        ResourceType["BROKER" if resource == "CLUSTER" else resource],
        name,
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )
