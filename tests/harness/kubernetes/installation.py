"""Where setup.sh has put Kubernetes, what a node needs besides, and whether tests may go without."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.harness.kafka.processes import HarnessError

# Outside the clone, so that a second clone does not build it again; setup.sh names it in the same way.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirrorflow" / "kubernetes"
CONTROL = CACHE / "control"
NODE = CACHE / "node"
HELM = CACHE / "helm"
KIND = CACHE / "kind"
MONITORING = CACHE / "monitoring"
ARGO_CD = CACHE / "argocd"
# Debian's packages and the plugins' own releases put them here.
CNI_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CGROUPS = Path("/sys/fs/cgroup")
COMMANDS = ("containerd", "ctr", "runc", "ip", "nft", "nsenter", "unshare")
# Where it is set, as in CI, a test that needs a cluster fails instead of being skipped.
REQUIRED_BY = "REQUIRE_CLUSTER"


def cluster_is_required() -> bool:
    """Whether the absence of what clusters are made of is a failure."""
    return os.environ.get(REQUIRED_BY, "") not in {"", "0"}


def require_control_plane() -> None:
    """`HarnessError` when setup.sh has built none."""
    if not (CONTROL / ".complete").exists():
        raise HarnessError(
            "No Kubernetes control plane is built: tests/harness/kubernetes/setup.sh builds it, or says what it lacks."
        )


def require_monitoring() -> None:
    """`HarnessError` when setup.sh has fetched none of the Prometheus operator's definitions."""
    if not (MONITORING / ".complete").exists():
        raise HarnessError(
            "No definitions of the Prometheus operator are there: tests/harness/kubernetes/setup.sh fetches them."
        )


def require_helm() -> None:
    """`HarnessError` when setup.sh has built none."""
    if not (HELM / ".complete").exists():
        raise HarnessError(
            "No Helm is built: `tests/harness/kubernetes/setup.sh cluster` builds it, or says what it lacks."
        )


def require_node() -> None:
    """`HarnessError` that names what a node cannot be made without."""
    require_control_plane()
    if not all((folder / ".complete").exists() for folder in (NODE, HELM)):
        raise HarnessError(
            "No Kubernetes node is built: `tests/harness/kubernetes/setup.sh cluster` builds it, or says what it lacks."
        )
    if os.geteuid() != 0:
        raise HarnessError("A Kubernetes node needs root, for namespaces, mounts and addresses of its own.")
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        raise HarnessError(f"A Kubernetes node needs {', '.join(lacking)}: `setup.sh cluster` installs them.")
    cni_plugins()
    spaces = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], check=False)
    if spaces.returncode or not all(os.access(group, os.W_OK) for group in cgroup_hierarchies()):
        raise HarnessError("A Kubernetes node needs a root that may make namespaces and control groups.")


def cgroup_hierarchies() -> list[Path]:
    """The hierarchies of version 1, or the one of version 2."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [file.parent for file in CGROUPS.glob("*/cgroup.procs")]


def cni_plugins() -> Path:
    """The folder of the CNI plugins; `HarnessError` without one."""
    found = next((folder for folder in CNI_PLUGINS if (folder / "bridge").exists()), None)
    if found is None:
        raise HarnessError("A Kubernetes node needs CNI plugins: `setup.sh cluster` installs them.")
    return found
