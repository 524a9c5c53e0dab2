"""Runs Helm as a user of a cluster. All its files are in the cluster's folder."""

import os
import subprocess
from dataclasses import dataclass

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.installation import HELM
from tests.harness.kubernetes.kubectl import Kubectl

COMMAND_WAIT_S = 300.0  # longer than any --timeout of a test


class HelmError(HarnessError):
    """helm ended with a status other than 0. The message is its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Helm:
    """Runs Helm as the user and in the namespace of *kubectl*."""

    kubectl: Kubectl

    def __call__(self, *arguments: str) -> str:
        """Runs helm and returns its output. Raises HelmError with its message."""
        kubeconfig = self.kubectl.kubeconfig
        home = str(kubeconfig.with_suffix(".helm"))
        homes = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), home)
        process = subprocess.run(
            [
                str(HELM / "helm"),
                f"--kubeconfig={kubeconfig}",
                f"--namespace={self.kubectl.namespace}",
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            check=False,
            env={**os.environ, **homes},
        )
        if process.returncode:
            raise HelmError(process.stderr.strip())
        return process.stdout
