"""`mirrorflow check` reports a missing permission on a cluster whose permissions are granted by IAM."""

import pytest

from mirrorflow_cli.check_permissions import missing_acl_message
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.admin.acls import CLUSTER_RESOURCE
from mirrorflow_kafka.client.cluster import Cluster


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
