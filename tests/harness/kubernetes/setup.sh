#!/usr/bin/env bash
# Builds a real Kubernetes from Go modules into .cache/kubernetes:
#   setup.sh          its control plane: etcd, API server, controllers, kubectl; and definitions of the Prometheus operator
#   setup.sh cluster  besides, what a node is made of, and Helm; the rest of a node comes from Debian's packages
#   setup.sh kind     what a cluster of kind takes in place of a node: kind, and Helm; Docker and its node image are yours
#   setup.sh packages those packages alone, with what images are built by
# Idempotent: what is built is kept under the hash of what it is built from. Two at once: the second waits for the first.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../../.." && pwd)/.cache/kubernetes
mkdir -p "$cache"

fail() { echo "$1" >&2; exit 1; }

build=
exec 9>"$cache/.lock"
flock 9

compile() {  # FOLDER PACKAGE: the program is called like the package
  # Nice, because tests run beside it; a build that is no longer wanted ends with this script.
  CGO_ENABLED=0 nice -n 19 go build -C "$1" -trimpath -ldflags "-s -w $stamp" -o "$unfinished/${2##*/}" "$2" 9>&- &
  build=$!
  wait "$build" || fail "Kubernetes $release could not be built: Go's own message is above."
}

build_control() {
  compile "$here/go" ./control
  for command in etcd kube-apiserver kube-controller-manager kubectl; do
    ln -s control "$unfinished/$command"
  done
}

build_node() {
  compile "$here/go" ./node
  compile "$here/go" ./pause
  compile "$here/go" ./probe
  compile "$here/coredns" mirrorflow.io/tests/coredns
  for command in kube-scheduler kube-proxy kubelet; do
    ln -s node "$unfinished/$command"
  done
}

build_kind() {
  compile "$here/kind" sigs.k8s.io/kind
}

build_monitoring() {
  local module
  module=$(cd "$here/monitoring" && go mod download -json github.com/prometheus-operator/prometheus-operator | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  cp "$module"/example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,podmonitors,prometheusrules}.yaml "$unfinished/"
}

build_helm() {
  compile "$here/helm" helm.sh/helm/v3/cmd/helm
}

provide() {  # NAME COST SOURCE...: $cache/NAME leads to what build_NAME makes of the sources
  local name=$1 cost=$2 key built
  shift 2
  key=$({ declare -f compile "build_$name"; cat "$@"; } | sha256sum)
  built=$cache/$name-${key:0:16}
  if [ ! -f "$built/.complete" ]; then
    command -v go >/dev/null ||
      fail "Tests on a real Kubernetes build it with Go 1.25 or later (from 1.21 on Go fetches that itself): put a go on the path, then try again."
    release=$(cd "$here/go" && go list -m -f '{{.Version}}' k8s.io/kubernetes) || fail "Go cannot read $here/go: its message is above."
    echo "Kubernetes ${release#v}, $name: building it from Go modules (the first time some $cost of processor time) ..."
    stamp="-X k8s.io/component-base/version.gitVersion=$release -X k8s.io/client-go/pkg/version.gitVersion=$release"
    unfinished=$(mktemp -d "$cache/unfinished.XXXX")
    trap 'kill "$build" 2>/dev/null || true; rm -rf "$unfinished"' EXIT
    "build_$name"
    touch "$unfinished/.complete"
    rm -rf "$cache/$name"-*
    mv "$unfinished" "$built"
  fi
  ln -sfn "${built##*/}" "$cache/$name"
}

install_packages() {
  local missing=()
  command -v containerd >/dev/null || missing+=(containerd)
  command -v runc >/dev/null || missing+=(runc)
  command -v nft >/dev/null || missing+=(nftables)
  command -v buildah >/dev/null || missing+=(buildah)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap debian-archive-keyring)
  command -v ip >/dev/null || missing+=(iproute2)
  [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || missing+=(containernetworking-plugins)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "A Kubernetes node and its images need root and these packages: ${missing[*]}. Install them, then try again."
  fi
  echo "Installing ${missing[*]} by apt ..."
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

if [ "${1:-}" = packages ]; then
  # Before anything runs beside it, because apt allows no second one. Without root, `cluster` says what is missing.
  [ "$(id -u)" != 0 ] || install_packages
  exit
fi
provide control "ten minutes" "$here"/go/go.{mod,sum} "$here"/go/control/*.go
provide monitoring "three seconds" "$here"/monitoring/go.{mod,sum}
provide_helm() { provide helm "two minutes" "$here"/helm/go.{mod,sum}; }
if [ "${1:-}" = kind ]; then
  provide kind "ten seconds" "$here"/kind/go.{mod,sum}
  provide_helm
elif [ "${1:-}" = cluster ]; then
  install_packages
  provide node "three minutes" "$here"/go/go.{mod,sum} "$here"/go/{node,pause,probe}/*.go "$here"/coredns/{go.mod,go.sum,main.go}
  provide_helm
fi
