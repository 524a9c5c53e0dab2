"""Flow ids: a MirrorFlow has a different id in each namespace and Kubernetes cluster."""

import pytest

from mirrorflow_core.replication_policy import flow_id, flow_name, runs_elsewhere


def test_an_id_has_the_namespace_and_the_kubernetes_cluster() -> None:
    ids = {flow_id("orders", namespace, cluster) for namespace in ("a", "b") for cluster in ("x", "y", None)}

    assert ids == {"orders@a.x", "orders@a.y", "orders@a", "orders@b.x", "orders@b.y", "orders@b"}


@pytest.mark.parametrize("id_", ["orders", "orders@payments", "orders@payments.0f3c"])
def test_the_flow_name_is_the_part_before_the_namespace(id_: str) -> None:
    assert flow_name(id_) == "orders"


@pytest.mark.parametrize(
    ("id_", "owner", "expected"),
    [
        ("orders", "orders@payments.0f3c", True),
        ("orders", "orders", False),
        ("orders", "other@payments.0f3c", False),
        ("orders@mirrors.0f3c", "orders@payments.0f3c", False),
    ],
)
def test_a_flow_from_a_file_matches_a_flow_of_the_same_name_in_kubernetes(
    id_: str, owner: str, *, expected: bool
) -> None:
    assert runs_elsewhere(id_, owner) is expected
