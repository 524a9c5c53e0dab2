"""`mirrorflow check` reports a missing permission with the IAM action, and targets that do not support share groups."""

import asyncio

import pytest

from mirrorflow_cli.check_permissions import check_target_groups, missing_acl_message
from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import UnsupportedBrokerError
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.admin import groups, share_groups
from mirrorflow_kafka.admin.acls import CLUSTER_RESOURCE
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone

CHECKPOINTS = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:1
groups=.*
sync.group.offsets.enabled=true
"""


def cluster(**properties: str) -> Cluster:
    settings = ClientSettings(alias="east", client_id="test", properties=properties)
    return Cluster(settings, resolve=lambda given: given)


@pytest.mark.parametrize(
    ("operation", "resource", "action"),
    [
        ("Read", "topic orders", "kafka-cluster:ReadData"),
        ("DescribeConfigs", "topic orders and 3 more", "kafka-cluster:DescribeTopicDynamicConfiguration"),
        ("Read", "group app", "kafka-cluster:AlterGroup"),
        ("Alter", CLUSTER_RESOURCE, "kafka-cluster:AlterCluster"),
    ],
)
def test_a_missing_permission_is_reported_with_the_action_for_the_iam_policy(
    operation: str, resource: str, action: str
) -> None:
    by_iam = cluster(**{"sasl.mechanism": "AWS_MSK_IAM"})
    assert missing_acl_message(by_iam, operation, resource).endswith(f"In the IAM policy it is {action}.")
    assert "IAM" not in missing_acl_message(cluster(), operation, resource)


def share_groups_of(monkeypatch: pytest.MonkeyPatch, problem: Exception | None) -> Findings:
    """Returns the findings for a target that describes share groups, or that fails with *problem*."""

    async def fetch(*_: object) -> dict[object, object]:
        if problem is not None:
            raise problem
        return {}

    async def may_read(*_: object) -> bool:
        return True

    monkeypatch.setattr(share_groups, "fetch_start_offsets", fetch)
    monkeypatch.setattr(groups, "may_read", may_read)
    selected = [
        Group(name="billing", type="Consumer", protocol_type="consumer"),
        Group(name="jobs", type="Share"),
        Group(name="mails", type="Share"),
    ]
    (settings,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CHECKPOINTS]).connectors
    assert settings.checkpoint is not None
    findings = Findings()
    asyncio.run(check_target_groups(cluster(), settings.checkpoint, selected, findings))
    return findings


def test_a_target_without_support_for_share_groups_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Consumer groups are still translated, so the flow may run."""
    feature = UnsupportedBrokerError(cluster="B", feature="DescribeShareGroupOffsets", needs="Kafka 4.1")

    assert share_groups_of(monkeypatch, feature).problems == []
    printed = capsys.readouterr().out
    assert (
        "note  Share group jobs and 1 more cannot follow to B: The brokers of cluster B do not offer"
        in printed
    )
    share_groups_of(monkeypatch, None)
    assert "cannot follow" not in capsys.readouterr().out
