"""Each block of MM2's README as a complete mm2.properties, and Kafka's connect-mirror-maker.properties."""

_TWO = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
_PRIMARY = """
clusters = primary, backup
primary.bootstrap.servers = p:9092
backup.bootstrap.servers = b:9092
primary->backup.enabled = true
"""
_SIX = "clusters: west-1, west-2, east-1, east-2, north-1, north-2\n" + "".join(
    f"{alias}.bootstrap.servers = {alias}:9092\n"
    for alias in ("west-1", "west-2", "east-1", "east-2", "north-1", "north-2")
)
_XDCR = """
# active/active in west
west-1->west-2.enabled = true
west-2->west-1.enabled = true

# active/active in east
east-1->east-2.enabled = true
east-2->east-1.enabled = true

# active/active in north
north-1->north-2.enabled = true
north-2->north-1.enabled = true

# XDCR via west-1, east-1, north-1
west-1->east-1.enabled = true
west-1->north-1.enabled = true
east-1->west-1.enabled = true
east-1->north-1.enabled = true
north-1->west-1.enabled = true
north-1->east-1.enabled = true
"""

BLOCKS = {
    "topics and groups of a flow": _TWO + "A->B.topics = topic-1, topic-2\nA->B.groups = group-1, group-2\n",
    "active/active": _TWO + "B->A.enabled = true\n",
    "quick start": """
# mm2.properties
clusters = us-west, us-east
us-west.bootstrap.servers = host1:9092
us-east.bootstrap.servers = host2:9092

topics = .*
groups = group1, group2
emit.checkpoints.interval.seconds = 10

# configure a specific cluster
us-west.offset.storage.topic = mm2-offsets

# configure a specific source->target replication flow
us-west->us-east.emit.heartbeats = false

us-west->us-east.enabled = true     # disabled by default
""",
    "a cluster's own offsets topic": _TWO + "B.offset.storage.topic = mm2-offsets\n",
    "six clusters": _SIX + _XDCR,
    "tasks": _TWO + "tasks.max = 2\n",
    "connect config of a cluster": _PRIMARY
    + "backup.ssl.truststore.location = /usr/lib/cacerts // SSL cert location\n"
    + "backup.security.protocol = SSL // if target cluster needs SSL to send message\n",
    "config of a flow": _PRIMARY
    + "backup->primary.enabled = false // set to false if one-way replication is desired\n"
    + "primary->backup.topics.blacklist = topics_to_blacklist\n"
    + "primary->backup.emit.heartbeats.enabled = false\n"
    + "primary->backup.sync.group.offsets = true \n",
    "clients": _PRIMARY
    + "backup.producer.compression.type = gzip\n"
    + "backup.producer.buffer.memory = 32768\n"
    + "primary.consumer.isolation.level = read_committed\n"
    + "primary.admin.bootstrap.servers = localhost:9092\n",
    "shared configuration": _TWO + "A->B.topics = foo\n",
    "exactly once": _TWO
    + "B.exactly.once.source.support = enabled\n"
    + "dedicated.mode.enable.internal.rest = true\n"
    + "listeners = http://localhost:8080\n"
    + "A.consumer.isolation.level = read_committed\n",
    "separator": _TWO + "replication.policy.separator = _\n",
    "identity": _TWO
    + "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n",
    "Kafka's connect-mirror-maker.properties": """
clusters = A, B
A.bootstrap.servers = A_host1:9092, A_host2:9092, A_host3:9092
B.bootstrap.servers = B_host1:9092, B_host2:9092, B_host3:9092
A->B.enabled = true
A->B.topics = .*
B->A.enabled = true
B->A.topics = .*
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
replication.policy.separator = _
sync.topic.acls.enabled = false
emit.heartbeats.interval.seconds = 5
""",
}
