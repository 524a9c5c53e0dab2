"""Writes the files, commands and addresses with which the components of a node start.

They work on hosts of any kind, including containers: with cgroup v1 or v2, no systemd, swap, a nearly full disk, or no
permission to lower an OOM score.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.installation import CONTROL, NODE, cni_plugins

PAUSE_IMAGE = "localhost/pause:1"
ETCD = "http://127.0.0.1:2379"  # the loopback address of the node
COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kube-proxy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node called *name* of the cluster with the addresses 10.*network*.0.0/16. *folder* contains all its files.

    Node 1 also runs the control plane. Nodes 2 to 4 are workers.
    """

    folder: Path
    name: str
    network: int
    number: int = 1

    @property
    def has_control_plane(self) -> bool:
        return self.number == 1

    @property
    def host_ip(self) -> str:
        """Returns the host's address on the link to this node."""
        return f"10.{self.network}.0.{4 * self.number - 3}"

    @property
    def ip(self) -> str:
        return f"10.{self.network}.0.{4 * self.number - 2}"

    @property
    def pods(self) -> str:
        """Returns the addresses of this node's pods."""
        return f"10.{self.network}.{48 + 16 * self.number}.0/20"

    @property
    def cluster(self) -> str:
        """Returns all addresses of the cluster."""
        return f"10.{self.network}.0.0/16"

    @property
    def services(self) -> str:
        return f"10.{self.network}.128.0/18"

    @property
    def api_ip(self) -> str:
        """Returns the address of the Service `kubernetes`, the first of the services."""
        return f"10.{self.network}.128.1"

    @property
    def dns_ip(self) -> str:
        return f"10.{self.network}.128.10"

    @property
    def server(self) -> str:
        """Returns the URL of the API server, which node 1 runs."""
        return f"https://10.{self.network}.0.2:6443"

    @property
    def socket(self) -> Path:
        """Returns the socket of containerd."""
        return self.folder / "containerd.sock"

    def configure(self, authority: Authority) -> None:
        """Writes every file, including keys."""
        self._make_keys(authority)
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self._write("cni/10-bridge.conflist", self._network())
        self._write("kubelet.yaml", self._kubelet(authority))
        self._write("kube-proxy.yaml", self._proxy(authority))
        self._write(
            "node.json",
            {
                "server": self.server,
                "authority": str(authority.own.certificate),
                "first": self._first(authority),
                "then": self._then(authority),
            },
        )

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1))

    def _make_keys(self, authority: Authority) -> None:
        if self.has_control_plane:
            names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
            authority.server("api", *names, "127.0.0.1", self.ip, self.api_ip)
            authority.signing_key("tokens")
            authority.kubeconfig(authority.user("kubelet-client", groups=["system:masters"]), self.server)
            for name in COMPONENTS:
                authority.kubeconfig(authority.user(f"system:{name}"), self.server)
        authority.server(self._kubelet_server, self.name, self.ip)
        kubelet = authority.user(f"system:node:{self.name}", groups=["system:nodes"])
        authority.kubeconfig(kubelet, self.server)

    @property
    def _kubelet_server(self) -> str:
        return f"kubelet-server-{self.name}"

    def _containerd(self) -> str:
        unused_plugins = (
            "internal.v1.opt",
            *(f"snapshotter.v1.{kind}" for kind in ("aufs", "btrfs", "devmapper", "zfs")),
        )
        disabled = ", ".join(f'"io.containerd.{plugin}"' for plugin in unused_plugins)
        return f"""version = 2
root = "{self.folder}/containerd/root"
state = "{self.folder}/containerd/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_plugins()}"
  conf_dir = "{self.folder}/cni"
"""

    def _network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": self.name, "plugins": [bridge, ports]}

    def _kubelet(self, authority: Authority) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "authentication": {"x509": {"clientCAFile": str(authority.own.certificate)}},
            "tlsCertFile": str(authority.folder / f"{self._kubelet_server}.crt"),
            "tlsPrivateKeyFile": str(authority.folder / f"{self._kubelet_server}.key"),
            "podLogsDir": str(self.folder / "log" / "pods"),
            "clusterDomain": "cluster.local",
            "clusterDNS": [self.dns_ip],
            "resolvConf": str(self.folder / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            # By default, kubelet updates a volume a minute after its Secret has changed.
            "configMapAndSecretChangeDetectionStrategy": "Watch",
            "syncFrequency": "5s",
            "fileCheckFrequency": "5s",
            "nodeStatusUpdateFrequency": "2s",
        }

    def _proxy(self, authority: Authority) -> dict[str, Any]:
        # Zeros mean that kube-proxy sets no limit, because a limit would apply to the whole machine.
        conntrack = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": self.pods,  # traffic from elsewhere to a Service gets this node's address
            "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": str(authority.folder / "system-kube-proxy.kubeconfig")},
            "conntrack": conntrack,
        }

    def _first(self, authority: Authority) -> dict[str, list[str]]:
        """Returns the API server and what it needs. For a worker, returns what does not need the API server."""
        pki = authority.folder
        containerd = {"containerd": ["containerd", f"--config={self.folder / 'containerd.toml'}"]}
        if not self.has_control_plane:
            return containerd
        return {
            **containerd,
            "etcd": [
                str(CONTROL / "etcd"),
                f"--data-dir={self.folder / 'etcd'}",
                "--unsafe-no-fsync",
                "--log-level=warn",
                f"--listen-client-urls={ETCD}",
                f"--advertise-client-urls={ETCD}",
            ],
            "kube-apiserver": [
                str(CONTROL / "kube-apiserver"),
                f"--etcd-servers={ETCD}",
                f"--advertise-address={self.ip}",
                f"--service-cluster-ip-range={self.services}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--client-ca-file={authority.own.certificate}",
                f"--tls-cert-file={pki / 'api.crt'}",
                f"--tls-private-key-file={pki / 'api.key'}",
                f"--kubelet-certificate-authority={authority.own.certificate}",
                f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
                f"--kubelet-client-key={pki / 'kubelet-client.key'}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer={self.server}",
                f"--service-account-key-file={pki / 'tokens.key'}",
                f"--service-account-signing-key-file={pki / 'tokens.key'}",
            ],
        }

    def _then(self, authority: Authority) -> dict[str, list[str]]:
        """Returns the components that need the API server."""
        pki = authority.folder
        control_plane = {
            "kube-controller-manager": [
                str(CONTROL / "kube-controller-manager"),
                f"--kubeconfig={pki / 'system-kube-controller-manager.kubeconfig'}",
                "--leader-elect=false",
                "--use-service-account-credentials",
                f"--root-ca-file={authority.own.certificate}",
                f"--service-account-private-key-file={pki / 'tokens.key'}",
            ],
            "kube-scheduler": [
                str(NODE / "kube-scheduler"),
                "--leader-elect=false",
                f"--kubeconfig={pki / 'system-kube-scheduler.kubeconfig'}",
            ],
        }
        return {
            **(control_plane if self.has_control_plane else {}),
            "kubelet": [
                str(NODE / "kubelet"),
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--kubeconfig={pki / f'system-node-{self.name}.kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.ip}",
                f"--cert-dir={pki}",
            ],
            "kube-proxy": [str(NODE / "kube-proxy"), f"--config={self.folder / 'kube-proxy.yaml'}"],
            "policies": [
                sys.executable,
                "-m",
                "tests.harness.kubernetes.policy",
                str(pki / "kubelet-client.kubeconfig"),
            ],
        }
