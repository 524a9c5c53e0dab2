"""Paths of the Kubernetes programs that setup.sh provides, and checks for what a test needs."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.harness.kafka.processes import HarnessError

# This folder is outside the clone, so that all clones share it. setup.sh has the same path.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirrorflow" / "kubernetes"
CONTROL = CACHE / "control"
NODE = CACHE / "node"
HELM = CACHE / "helm"
KIND = CACHE / "kind"
MONITORING = CACHE / "monitoring"
ARGO_CD = CACHE / "argocd"
OAUTH2_PROXY = CACHE / "oauth2-proxy"
# Debian's packages and the plugins' releases install into these folders.
CNI_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CGROUPS = Path("/sys/fs/cgroup")
COMMANDS = ("containerd", "ctr", "runc", "ip", "nft", "nsenter", "unshare")
# If this variable is set, as in CI, a test without its cluster fails instead of being skipped.
REQUIRED_BY = "REQUIRE_CLUSTER"


def cluster_is_required() -> bool:
    """Returns whether a test fails without its cluster."""
    return os.environ.get(REQUIRED_BY, "") not in {"", "0"}


def require_control_plane() -> None:
    """Raises `HarnessError` if setup.sh has not built the control plane."""
    if not (CONTROL / ".complete").exists():
        raise HarnessError(
            "No Kubernetes control plane is built: tests/harness/kubernetes/setup.sh builds it, or says what it lacks."
        )


def require_monitoring() -> None:
    """Raises `HarnessError` if setup.sh has not fetched the CRDs of the Prometheus operator."""
    if not (MONITORING / ".complete").exists():
        raise HarnessError(
            "The CRDs of the Prometheus operator are missing: tests/harness/kubernetes/setup.sh fetches them."
        )


def require_helm() -> None:
    """Raises `HarnessError` if setup.sh has not built Helm."""
    if not (HELM / ".complete").exists():
        raise HarnessError(
            "No Helm is built: `tests/harness/kubernetes/setup.sh cluster` builds it, or says what it lacks."
        )


def require_oauth2_proxy() -> None:
    """Raises `HarnessError` if setup.sh has not built oauth2-proxy."""
    if not (OAUTH2_PROXY / ".complete").exists():
        raise HarnessError("oauth2-proxy is not built: run tests/harness/kubernetes/setup.sh oauth2-proxy.")


def require_node() -> None:
    """Raises `HarnessError` with what a node lacks."""
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
    """Returns the hierarchies of cgroup version 1, or the single one of version 2."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [file.parent for file in CGROUPS.glob("*/cgroup.procs")]


def cni_plugins() -> Path:
    """Returns the folder of the CNI plugins. Raises `HarnessError` if it is missing."""
    plugins = next((folder for folder in CNI_PLUGINS if (folder / "bridge").exists()), None)
    if plugins is None:
        raise HarnessError("A Kubernetes node needs CNI plugins: `setup.sh cluster` installs them.")
    return plugins
