"""What a test does where Kubernetes cannot be had: it is skipped and says why; where clusters are required, it fails."""

from collections.abc import Callable

import pytest

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.choosing import choice
from tests.harness.kubernetes.installation import cluster_is_required, require_node


def skip_without(required: Callable[[], None]) -> None:
    """*required* raises `HarnessError` that names what is lacking."""
    try:
        required()
    except HarnessError as error:
        if cluster_is_required():
            raise
        pytest.skip(str(error))


def skip_without_node() -> None:
    """Of what is about a node of ours, and not about Kubernetes."""
    if choice() == "kind":
        pytest.skip("The cluster is one of kind here; CLUSTER=node tests a node of ours.")
    skip_without(require_node)
