"""kubectl as some user, with no files of its own outside the cluster's folder."""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.installation import CONTROL

ANSWER_WAIT_S = 60.0  # a tenth of a second alone; waits of kubectl's own have their own bound


class KubectlError(HarnessError):
    """kubectl ended with another status than 0; the message is what it has said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubectl:
    """Whom *kubeconfig* names, in *namespace* where a command names none."""

    kubeconfig: Path
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """The same user elsewhere."""
        return replace(self, namespace=namespace)

    def __call__(self, *arguments: str, stdin: str = "", timeout_s: float = ANSWER_WAIT_S) -> str:
        """What kubectl prints. Raises KubectlError with its complaint."""
        command = (
            str(CONTROL / "kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
        )
        done = subprocess.run(
            [*command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "KUBECACHEDIR": str(self.kubeconfig.with_suffix(".cache"))},
        )
        if done.returncode:
            raise KubectlError(done.stderr.strip())
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, read."""
        return json.loads(self("get", *arguments, "--output=json"))

    def read(self, path: str) -> Any:
        """What the API server answers at *path*."""
        return json.loads(self("get", "--raw", path))

    def apply(self, manifest: object, *arguments: str) -> str:
        """Server-side apply of *manifest*, an object or a YAML text."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self("apply", "--server-side", "--filename=-", *arguments, stdin=text)
