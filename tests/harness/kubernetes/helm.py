"""Helm as some user, with no files of its own outside the cluster's folder."""

import os
import subprocess
from dataclasses import dataclass

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.installation import HELM
from tests.harness.kubernetes.kubectl import Kubectl

ANSWER_WAIT_S = 300.0  # above any --timeout of a test


class HelmError(HarnessError):
    """helm ended with another status than 0; the message is what it has said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Helm:
    """The user and the namespace of *kubectl*."""

    kubectl: Kubectl

    def __call__(self, *arguments: str) -> str:
        """What helm prints. Raises HelmError with its complaint."""
        kubeconfig = self.kubectl.kubeconfig
        home = str(kubeconfig.with_suffix(".helm"))
        homes = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), home)
        done = subprocess.run(
            [
                str(HELM / "helm"),
                f"--kubeconfig={kubeconfig}",
                f"--namespace={self.kubectl.namespace}",
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=ANSWER_WAIT_S,
            check=False,
            env={**os.environ, **homes},
        )
        if done.returncode:
            raise HelmError(done.stderr.strip())
        return done.stdout
