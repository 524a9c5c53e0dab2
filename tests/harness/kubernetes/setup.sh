#!/usr/bin/env bash
# Builds a real Kubernetes control plane (etcd, API server, controllers, kubectl) from Go modules into .cache/kubernetes.
# Idempotent: what is built is kept under the hash of what it is built from. Two at once: the second waits for the first.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../../.." && pwd)/.cache/kubernetes
commands=(etcd kube-apiserver kube-controller-manager kubectl)
mkdir -p "$cache"

fail() { echo "$1" >&2; exit 1; }

exec 9>"$cache/.lock"
flock 9

key=$(cat "$here/setup.sh" "$here"/go/go.{mod,sum} "$here"/go/control/*.go | sha256sum)
built=$cache/control-${key:0:16}
if [ ! -f "$built/.complete" ]; then
  command -v go >/dev/null ||
    fail "Tests on a real Kubernetes API server build it with Go 1.24 or later (from 1.21 on Go fetches that itself): put a go on the path, then try again."
  release=$(cd "$here/go" && go list -m -f '{{.Version}}' k8s.io/kubernetes) || fail "Go cannot read $here/go: its message is above."
  echo "Kubernetes ${release#v}: building its control plane from Go modules (the first time some ten CPU-minutes) ..."
  stamp="-X k8s.io/component-base/version.gitVersion=$release -X k8s.io/client-go/pkg/version.gitVersion=$release"
  unfinished=$(mktemp -d "$cache/unfinished.XXXX")
  # Nice, because tests run beside it; a build that is no longer wanted ends with this script.
  CGO_ENABLED=0 nice -n 19 go build -C "$here/go" -trimpath -ldflags "-s -w $stamp" -o "$unfinished/control" ./control 9>&- &
  build=$!
  trap 'kill "$build" 2>/dev/null || true; rm -rf "$unfinished"' EXIT
  wait "$build" || fail "Kubernetes $release could not be built: Go's own message is above."
  for command in "${commands[@]}"; do
    ln -s control "$unfinished/$command"
  done
  touch "$unfinished/.complete"
  rm -rf "$cache"/control-* "$built"
  mv "$unfinished" "$built"
fi
ln -sfn "${built##*/}" "$cache/bin"
