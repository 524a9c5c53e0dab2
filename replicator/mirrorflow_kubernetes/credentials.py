"""Where the credentials of a Kubernetes cluster are, by kubectl's rule."""

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

from mirrorflow_core.errors import MirrorFlowError


class KubernetesLoginError(MirrorFlowError):
    """There are no usable credentials for a Kubernetes cluster; `problem` is the cause."""

    reason = "KubernetesLoginFailed"

    def __init__(self, problem: str) -> None:
        self.problem = problem.rstrip(".")
        files = kubeconfig()
        which = f"with the kubeconfig {files}" if files else "without a kubeconfig"
        super().__init__(
            f"Cannot log in to Kubernetes {which}: {self.problem}; "
            "name a kubeconfig with KUBECONFIG, or run in a pod with a ServiceAccount token."
        )


def kubeconfig() -> str | None:
    """Returns the files that KUBECONFIG names, else ~/.kube/config if it exists; None means the pod's ServiceAccount."""
    if files := os.environ.get("KUBECONFIG"):
        return files
    default = Path("~/.kube/config").expanduser()
    return str(default) if default.is_file() else None


def is_on_this_machine(url: str) -> bool:
    """Whether *url* names a loopback address: such servers are not reached by a proxy of the environment."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
