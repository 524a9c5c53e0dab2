"""Runs Argo CD's application controller and repo server as processes of this machine, against any cluster.

        with ArgoCd(kubectl=cluster.kubectl, folder=tmp_path) as argo:
            argo.write("mirrors/flow.yaml", text)
            argo.apply(argo.application("mirrors", path="mirrors", namespace="flows"))
            argo.wait_for("mirrors", sync="Synced", health="Healthy")

The controller uses the kubeconfig of *kubectl*. Applications read a Git repository in *folder*. Argo CD's objects are in the
namespace `argocd`, which is deleted at the end, like its CRDs. It needs `setup.sh argocd` and git.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.processes import Child, HarnessError, accepts, free_port, start, wait_until
from tests.harness.kubernetes.installation import ARGO_CD, HELM
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError

NAMESPACE = "argocd"
IN_CLUSTER = "https://kubernetes.default.svc"  # Argo CD's name for its own cluster
WAIT_S = 180.0  # seconds on an idle machine; longer while a whole suite runs on two cores
CRDS = ("application-crd.yaml", "appproject-crd.yaml")
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@example.com")
Object = dict[str, Any]


def require_argo_cd() -> None:
    """Raises HarnessError if Argo CD or git is missing."""
    if not (ARGO_CD / ".complete").exists():
        raise HarnessError("Argo CD is not built: run tests/harness/kubernetes/setup.sh argocd.")
    if shutil.which("git") is None:
        raise HarnessError("Argo CD needs git.")


@dataclass(kw_only=True, slots=True)
class ArgoCd:
    """Argo CD with *customizations*, which are entries of the ConfigMap argocd-cm."""

    kubectl: Kubectl
    folder: Path
    customizations: Mapping[str, str] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list, init=False)

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def own(self) -> Kubectl:
        """Returns kubectl in Argo CD's namespace."""
        return self.kubectl.within(NAMESPACE)

    def __enter__(self) -> Self:
        require_argo_cd()
        try:
            self.repository.mkdir(parents=True)
            self._git("init", "--quiet", "--initial-branch=main")
            self._install()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
        for name in CRDS:
            self.kubectl("delete", "--ignore-not-found", "--wait=false", f"--filename={ARGO_CD / name}")

    def write(self, path: str, content: str | Path) -> None:
        """Commits *content*, a text or a folder, as *path*."""
        target = self.repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copytree(content, target)
        else:
            target.write_text(content)
        self._commit()

    def remove(self, path: str) -> None:
        """Commits the removal of the file *path*. Its folder stays."""
        (self.repository / path).unlink()
        (self.repository / path).with_name(".keep").touch()
        self._commit()

    def application(self, name: str, *, path: str, namespace: str, helm: Object | None = None) -> Object:
        """Returns an Application with the options of docs/gitops.md, which are automated sync, pruning and self-heal."""
        source: Object = {"repoURL": self.repository.as_uri(), "targetRevision": "main", "path": path}
        return {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "finalizers": ["resources-finalizer.argocd.argoproj.io"],
            },
            "spec": {
                "project": "default",
                "source": source if helm is None else {**source, "helm": helm},
                "destination": {"server": IN_CLUSTER, "namespace": namespace},
                "syncPolicy": {
                    "automated": {"prune": True, "selfHeal": True, "allowEmpty": True},
                    "syncOptions": [
                        "ServerSideApply=true",
                        "SkipDryRunOnMissingResource=true",
                        "CreateNamespace=true",
                    ],
                },
            },
        }

    def apply(self, application: Object) -> None:
        self.own.apply(application)

    def refresh(self, name: str) -> Object:
        """Makes Argo CD compare Git and the cluster without a cache, and returns the Application's status."""
        patch = {"metadata": {"annotations": {"argocd.argoproj.io/refresh": "hard"}}}
        self.own("patch", "application", name, "--type=merge", f"--patch={json.dumps(patch)}")

        def compared() -> bool:
            annotations = self.own.get("application", name)["metadata"].get("annotations", {})
            return "argocd.argoproj.io/refresh" not in annotations

        wait_until(f"{name} is compared", compared, timeout_s=WAIT_S)
        return self.status(name)

    def status(self, name: str) -> Object:
        return dict(self.own.get("application", name).get("status", {}))

    def wait_for(self, name: str, *, sync: str, health: str) -> Object:
        """Waits until the Application has this sync status and this health, and returns its status."""
        status: Object = {}

        def reached() -> bool:
            status.update(self.status(name))
            self._must_run()
            return (status.get("sync", {}).get("status"), status.get("health", {}).get("status")) == (
                sync,
                health,
            )

        try:
            wait_until(f"{name} is {sync} and {health}", reached, timeout_s=WAIT_S)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{json.dumps(status, indent=1)}\n{self.logs()}") from error
        return status

    def delete(self, name: str) -> None:
        """Deletes the Application and, because of its finalizer, what it has deployed."""
        self.own("delete", "application", name, f"--timeout={WAIT_S:.0f}s", timeout_s=WAIT_S + 10)

    def logs(self) -> str:
        return "\n\n".join(f"{child.name}\n{child.tail()}" for child in self._children)

    def _install(self) -> None:
        for name in CRDS:
            self.kubectl("apply", "--server-side", f"--filename={ARGO_CD / name}")
        for name in ("applications", "appprojects"):
            self.kubectl("wait", "--for=condition=Established", f"crd/{name}.argoproj.io", "--timeout=60s")
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self._apply_part("v1", "ConfigMap", "argocd-cm", {"data": dict(self.customizations)})
        self._apply_part("v1", "Secret", "argocd-secret", {"stringData": {"server.secretkey": "secret"}})
        project = {
            "sourceRepos": ["*"],
            "destinations": [{"server": "*", "namespace": "*"}],
            "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
        }
        self._apply_part("argoproj.io/v1alpha1", "AppProject", "default", {"spec": project})

    def _apply_part(self, version: str, kind: str, name: str, content: Object) -> None:
        """Applies an object that Argo CD reads from its namespace and selects by label."""
        labels = {"app.kubernetes.io/part-of": "argocd"}
        metadata = {"name": name, "labels": labels}
        self.own.apply({"apiVersion": version, "kind": kind, "metadata": metadata, **content})

    def _start(self) -> None:
        redis, repositories = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._child("argocd-redis", redis)
        self._child(
            "argocd-repo-server",
            "--address=127.0.0.1",
            f"--port={repositories.rpartition(':')[2]}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={free_port()}",
            "--disable-tls",
            "--client-ca-path=",  # with --disable-tls, the default is refused
            f"--redis={redis}",
            "--logformat=text",
        )
        for address in (redis, repositories):
            wait_until(f"{address} accepts connections", lambda listener=address: self._accepts(listener))  # type: ignore[misc]
        self._child(
            "argocd-application-controller",
            f"--kubeconfig={self.kubectl.kubeconfig}",
            f"--namespace={NAMESPACE}",
            f"--metrics-port={free_port()}",
            f"--repo-server={repositories}",
            "--repo-server-plaintext",
            f"--redis={redis}",
            "--logformat=text",
        )

    def _child(self, name: str, *arguments: str) -> None:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{ARGO_CD}:{HELM}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(home),
            "KUBECONFIG": str(self.kubectl.kubeconfig),
            "ARGOCD_FAKE_IN_CLUSTER": "true",
            "ARGOCD_GPG_ENABLED": "false",
            "ARGOCD_TLS_DATA_PATH": str(home),
            "ARGOCD_SSH_DATA_PATH": str(home),
            "REDIS_PASSWORD": "",
        }
        log = self.folder / f"{name}.log"
        self._children.append(
            start(name, [str(ARGO_CD / name), *arguments], log=log, environment=environment)
        )

    def _accepts(self, address: str) -> bool:
        self._must_run()
        return accepts(int(address.rpartition(":")[2]))

    def _must_run(self) -> None:
        for child in self._children:
            child.must_run()

    def _end(self) -> None:
        for child in self._children[::-1]:
            child.kill()

    def _commit(self) -> None:
        self._git("add", "--all")
        self._git(*IDENTITY, "commit", "--quiet", "--message=change")

    def _git(self, *arguments: str) -> None:
        process = subprocess.run(
            ["git", *arguments], cwd=self.repository, capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise HarnessError(f"git {' '.join(arguments)} failed: {process.stderr.strip()}")


def exists(kubectl: Kubectl, kind: str, name: str) -> bool:
    """Returns whether the object exists in the namespace of *kubectl*."""
    try:
        return bool(kubectl.get(kind, name))
    except KubectlError:
        return False
