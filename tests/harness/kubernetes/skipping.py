"""Skips a test that lacks its Kubernetes, with the reason. If REQUIRE_CLUSTER is set, the test fails instead."""

from collections.abc import Callable

import pytest

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.choosing import choice
from tests.harness.kubernetes.installation import cluster_is_required, require_node


def skip_without(required: Callable[[], None]) -> None:
    """Skips the test if *required* raises a `HarnessError`. The error has what is missing."""
    try:
        required()
    except HarnessError as error:
        if cluster_is_required():
            raise
        pytest.skip(str(error))


def skip_without_node() -> None:
    """Skips tests of MirrorFlow's own node if the cluster is one of kind."""
    if choice() == "kind":
        pytest.skip(
            "The cluster is one of kind here; CLUSTER=node tests on the node that the harness starts."
        )
    skip_without(require_node)
