#!/usr/bin/env bash
# Builds a real Kubernetes from Go modules into ${XDG_CACHE_HOME:-~/.cache}/mirrorflow/kubernetes, which all clones share:
#   setup.sh          the control plane: etcd, API server, controllers, kubectl; and the CRDs of the Prometheus operator
#   setup.sh cluster  also the programs of a node, and Helm; the rest of a node comes from Debian's packages
#   setup.sh kind     also kind and Helm, instead of a node; it expects Docker with a node image
#   setup.sh helm     only Helm
#   setup.sh argocd   also Argo CD's application controller and repo server; needs Go 1.27, which Go fetches itself
#   setup.sh oauth2-proxy  also oauth2-proxy, a proxy for OpenID Connect
#   setup.sh packages only Debian's packages, including those that build images
# It is idempotent: a build is kept under the hash of its sources, and so is a part of an interrupted build.
# If two run at the same time, the second waits for the first.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mirrorflow/kubernetes
mkdir -p "$cache"

fail() { echo "$1" >&2; exit 1; }

build= reporter=
progress_s=60

exec 9>"$cache/.lock"
flock 9

attempt() {  # COMMAND...: a download, up to three times
  local try
  for try in 1 2 3; do
    "$@" && return
    [ "$try" = 3 ] || sleep $((5 * try))
  done
  return 1
}

go_build() {  # FOLDER PACKAGE OUTPUT: nice, because tests run beside it
  CGO_ENABLED=0 exec nice -n 19 go build -C "$1" -trimpath -ldflags "-s -w $stamp" -o "$3" "$2"
}

compile() {  # FOLDER PACKAGE: the program is called like the package; one that an interrupted build has made is kept
  local program=${2##*/}
  number=$((number + 1))
  [ ! -e "$unfinished/$program" ] || return 0
  rm -f "$unfinished/.$program"  # Go overwrites nothing that is not a whole program
  # A build that is no longer wanted ends with this script.
  go_build "$1" "$2" "$unfinished/.$program" 9>&- &
  build=$!
  report "$part: building $program ($number of $programs)" 9>&- &
  reporter=$!
  wait "$build" || fail "Kubernetes $release could not be built: Go's own message is above."
  kill "$reporter" 2>/dev/null || true
  wait "$reporter" 2>/dev/null || true
  build= reporter=
  mv "$unfinished/.$program" "$unfinished/$program"
}

report() {  # SENTENCE: with the time, now and then for as long as the build and this script run
  local began=$SECONDS told=$SECONDS nothing
  # A builtin waits: a child of this one would outlive it.
  exec {nothing}<> <(:)
  while kill -0 "$build" 2>/dev/null && kill -0 $$ 2>/dev/null; do
    read -rt 1 -u "$nothing" || true
    if ((SECONDS - told >= progress_s)); then
      told=$SECONDS
      echo "  $1, $(minutes $((SECONDS - began))) so far, $(minutes "$SECONDS") in all"
    fi
  done
}

minutes() {  # SECONDS as a text
  printf '%d:%02d min' $(($1 / 60)) $(($1 % 60))
}

build_control() {
  attempt go -C "$here/go" mod download
  compile "$here/go" ./control
  for command in etcd kube-apiserver kube-controller-manager kubectl; do
    ln -sf control "$unfinished/$command"
  done
}

build_node() {
  compile "$here/go" ./node
  compile "$here/go" ./pause
  compile "$here/go" ./probe
  compile "$here/coredns" mirrorflow.io/tests/coredns
  for command in kube-scheduler kube-proxy kubelet; do
    ln -sf node "$unfinished/$command"
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

build_argocd() {
  local module
  local -x GOTOOLCHAIN=auto  # Go 1.27 as a module, also where another release is prescribed
  attempt go -C "$here/argocd" mod download
  compile "$here/argocd" mirrorflow.io/tests/argocd
  for command in argocd-application-controller argocd-repo-server argocd-redis; do
    ln -sf argocd "$unfinished/$command"
  done
  module=$(cd "$here/argocd" && go list -m -f '{{.Dir}}' github.com/argoproj/argo-cd/v3)
  install -m 644 "$module"/manifests/crds/app{lication,project}-crd.yaml "$unfinished/"
  install "$module"/hack/git-verify-wrapper.sh "$unfinished/"  # the repo server calls it for each commit
}

build_oauth2-proxy() {
  compile "$here/oauth2-proxy" github.com/oauth2-proxy/oauth2-proxy/v7
  ln -sf v7 "$unfinished/oauth2-proxy"
}

build_helm() {
  compile "$here/helm" helm.sh/helm/v3/cmd/helm
}

provide() {  # NAME COST SOURCE...: $cache/NAME leads to what build_NAME makes of the sources
  local name=$1 cost=$2 key built
  shift 2
  key=$({ declare -f go_build "build_$name"; cat "$@"; } | sha256sum)
  built=$cache/$name-${key:0:16}
  if [ ! -f "$built/.complete" ]; then
    command -v go >/dev/null ||
      fail "Tests on a real Kubernetes build it with Go 1.25 or later (from 1.21 on Go fetches that itself): put a go on the path, then try again."
    release=$(cd "$here/go" && go list -m -f '{{.Version}}' k8s.io/kubernetes) || fail "Go cannot read $here/go: its message is above."
    echo "Kubernetes ${release#v}, $name: building it from Go modules (the first time some $cost of processor time) ..."
    stamp="-X k8s.io/component-base/version.gitVersion=$release -X k8s.io/client-go/pkg/version.gitVersion=$release"
    trap 'kill $build $reporter 2>/dev/null || true' EXIT
    begin "$name" "partial-$name-${key:0:16}"
    "build_$name"
    touch "$unfinished/.complete"
    rm -rf "$cache/$name"-*
    mv "$unfinished" "$built"
  fi
  ln -sfn "${built##*/}" "$cache/$name"
}

begin() {  # NAME FOLDER: the folder that a build of the same sources may have begun; those of other sources go away
  local old made
  part=$1 number=0
  programs=$(declare -f "build_$1" | grep -c '^ *compile ' || true)
  unfinished=$cache/$2
  for old in "$cache/partial-$1"-* "$cache"/unfinished.*; do
    [ "$old" = "$unfinished" ] || rm -rf "$old"
  done
  mkdir -p "$unfinished"
  made=$(find "$unfinished" -mindepth 1 -type f ! -name '.*' -printf '%f ')
  [ -z "$made" ] || echo "  $1: an interrupted build has left ${made% }, which is kept"
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
  attempt apt-get update -qq
  DEBIAN_FRONTEND=noninteractive attempt apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

if [ "${1:-}" = packages ]; then
  # Before anything runs beside it, because apt allows no second one. Without root, `cluster` says what is missing.
  [ "$(id -u)" != 0 ] || install_packages
  exit
fi
provide_helm() { provide helm "two minutes" "$here"/helm/go.{mod,sum}; }
if [ "${1:-}" = helm ]; then
  provide_helm
  exit
fi
provide control "ten minutes" "$here"/go/go.{mod,sum} "$here"/go/control/*.go
provide monitoring "three seconds" "$here"/monitoring/go.{mod,sum}
if [ "${1:-}" = kind ]; then
  provide kind "ten seconds" "$here"/kind/go.{mod,sum}
  provide_helm
elif [ "${1:-}" = argocd ]; then
  provide argocd "five minutes" "$here"/argocd/{go.mod,go.sum,main.go}
elif [ "${1:-}" = oauth2-proxy ]; then
  provide oauth2-proxy "two minutes" "$here"/oauth2-proxy/go.{mod,sum}
elif [ "${1:-}" = cluster ]; then
  install_packages
  provide node "three minutes" "$here"/go/go.{mod,sum} "$here"/go/{node,pause,probe}/*.go "$here"/coredns/{go.mod,go.sum,main.go}
  provide_helm
fi
