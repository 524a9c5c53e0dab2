"""The patterns that MM2 excludes by default: topics, consumer groups, and settings of topics."""

TOPICS_EXCLUDE = ("mm2.*\\.internal", ".*\\.replica", "__.*")
GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
# Topic settings that describe the source's brokers or are better chosen on the target: MM2's list until 4.2
# and what 4.3 added. Those two are names of broker settings, so message.timestamp.{before,after}.max.ms are
# copied, as by MM2.
CONFIG_EXCLUDE = (
    "follower\\.replication\\.throttled\\.replicas",
    "leader\\.replication\\.throttled\\.replicas",
    "message\\.timestamp\\.difference\\.max\\.ms",
    "log\\.message\\.timestamp\\.before\\.max\\.ms",
    "log\\.message\\.timestamp\\.after\\.max\\.ms",
    "message\\.timestamp\\.type",
    "unclean\\.leader\\.election\\.enable",
    "min\\.insync\\.replicas",
)
