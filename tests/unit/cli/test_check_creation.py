"""`mirrorflow check` predicts problems with topics that a flow creates."""

from mirrorflow_cli.check_creation import too_few_replicas


def test_too_few_replicas_are_reported_with_both_settings():
    """Topics with equal counts share one sentence. Brokers before Kafka 3.7 refuse every write to them."""
    replicas = {"A.orders": (1, 2), "A.payments": (1, 2), "A.users": (2, 2), "mm2-offsets.A.internal": (2, 3)}

    first, second = too_few_replicas(replicas, "west")

    assert first == (
        "Replicas on west are too few for topic A.orders and 1 more: 1 (replication.factor), and no write is accepted "
        "with fewer than 2 in sync (min.insync.replicas): raise the first or lower the second."
    )
    assert "topic mm2-offsets.A.internal: 2 (replication.factor)" in second
