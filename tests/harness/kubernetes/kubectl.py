"""Runs kubectl as a user of a cluster. All its files are in the cluster's folder."""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.installation import CONTROL

COMMAND_WAIT_S = 60.0  # a tenth of a second on an idle machine; kubectl's own waits have their own limit


class KubectlError(HarnessError):
    """kubectl ended with a status other than 0. The message is its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubectl:
    """Runs kubectl as the user of *kubeconfig*, by default in *namespace*."""

    kubeconfig: Path
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """Returns kubectl as the same user in a different namespace."""
        return replace(self, namespace=namespace)

    def __call__(self, *arguments: str, stdin: str = "", timeout_s: float = COMMAND_WAIT_S) -> str:
        """Runs kubectl and returns its output. Raises KubectlError with its message."""
        command = (
            str(CONTROL / "kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
        )
        process = subprocess.run(
            [*command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "KUBECACHEDIR": str(self.kubeconfig.with_suffix(".cache"))},
        )
        if process.returncode:
            raise KubectlError(process.stderr.strip())
        return process.stdout

    def get(self, *arguments: str) -> Any:
        """Returns the JSON of `kubectl get ... -o json`."""
        return json.loads(self("get", *arguments, "--output=json"))

    def read(self, path: str) -> Any:
        """Returns the JSON of the API server's response for *path*."""
        return json.loads(self("get", "--raw", path))

    def apply(self, manifest: object, *arguments: str) -> str:
        """Applies *manifest*, an object or a YAML text, with server-side apply."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self("apply", "--server-side", "--filename=-", *arguments, stdin=text)
