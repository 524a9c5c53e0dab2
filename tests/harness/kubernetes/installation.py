"""Where setup.sh has put the control plane, and whether tests may go without it."""

import os
from pathlib import Path

from tests.harness.kafka.processes import HarnessError

BIN = Path(__file__).parents[3] / ".cache" / "kubernetes" / "bin"
# Where it is set, as in CI, a test that needs a cluster fails instead of being skipped.
REQUIRED_BY = "REQUIRE_CLUSTER"


def cluster_is_required() -> bool:
    """Whether the absence of what clusters are made of is a failure."""
    return os.environ.get(REQUIRED_BY, "") not in {"", "0"}


def require_control_plane() -> None:
    """`HarnessError` when setup.sh has built none."""
    if not (BIN / ".complete").exists():
        raise HarnessError(
            "No Kubernetes control plane is built: tests/harness/kubernetes/setup.sh builds it, or says what it lacks."
        )
