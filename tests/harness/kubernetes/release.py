"""Installs MirrorFlow on a cluster as users do: with the images of this work tree, and the chart by Helm.

        release = Release(cluster=cluster)
        release.load_images()
        release.install()

It has its own namespace and serves the MirrorFlows of the whole cluster.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.kubernetes.chart import CHART
from tests.harness.kubernetes.choosing import AnyCluster
from tests.harness.kubernetes.helm import Helm
from tests.harness.kubernetes.images import INSTALLED, VERSION, build
from tests.harness.kubernetes.kubectl import Kubectl

NAME = "mirrorflow"
NAMESPACE = "mirrorflow-system"
WAIT_S = 180  # ten seconds on an idle machine; longer while a whole suite runs on two cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A release with the chart's *values*, which are added to those that every release of the harness has."""

    cluster: AnyCluster
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kubectl(self) -> Kubectl:
        """Returns kubectl in the operator's namespace."""
        return self.cluster.kubectl.within(NAMESPACE)

    @property
    def helm(self) -> Helm:
        return Helm(kubectl=self.kubectl)

    def load_images(self, *targets: str) -> None:
        """Builds images from this work tree, or reuses them, and loads them.

        The default is the images that every release needs.
        """
        self.cluster.load(*(build(target, version=VERSION).archive for target in targets or INSTALLED))

    def install(self) -> None:
        """Installs the chart, and returns when the operator is ready."""
        self.cluster.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": NAMESPACE,
                    "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
                },
            }
        )
        self._helm("install", CHART)

    def upgrade(self, chart: Path = CHART, **values: Any) -> None:
        """Upgrades to *chart* with additional *values*.

        Returns when the new operator is ready and the old one has ended.
        """
        self._helm("upgrade", chart, **values)

    def uninstall(self) -> None:
        self.helm("uninstall", NAME, "--wait", f"--timeout={WAIT_S}s")

    def operators(self) -> list[dict[str, Any]]:
        """Returns the operator's pods that are not being deleted."""
        pods = self.kubectl.get("pods", "--selector=app.kubernetes.io/name=mirrorflow-operator")["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _helm(self, command: str, chart: Path, **values: Any) -> None:
        values_ = {"watch": {"cluster": True}, **self.values, **values}
        settings = [f"--set-json={name}={json.dumps(value)}" for name, value in values_.items()]
        self.helm(command, NAME, str(chart), *settings, "--wait", f"--timeout={WAIT_S}s")
