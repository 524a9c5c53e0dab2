#!/usr/bin/env bash
# Downloads a Kafka release into .cache/kafka, and compiles the harness's Java programs with the newest release:
#   setup.sh RELEASE
# It is idempotent; the file .ready-RELEASE is touched last, so that the next run repeats an interrupted one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../../.." && pwd)/.cache/kafka
newest=4.3.1
release=${1:-$newest}
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

fail() { echo "$1" >&2; exit 1; }

java_release() {  # of javac on the path: 17, 21, ...; 0 without one
  local version
  version=$(javac -version 2>&1) || { echo 0; return; }
  version=${version#javac }
  echo "${version%%.*}"
}

lacking() { [ "$(java_release)" -lt 17 ] || ! command -v mvn >/dev/null; }

attempt() {  # COMMAND...: a download, up to three times
  local try
  for try in 1 2 3; do
    "$@" && return
    [ "$try" = 3 ] || sleep $((5 * try))
  done
  return 1
}

install_by_apt() {
  local jdk
  attempt apt-get update -qq
  for jdk in 17 21 25; do  # Debian and Ubuntu carry one or several of them, and none carries all
    if apt-cache show "openjdk-$jdk-jdk-headless" >/dev/null 2>&1; then
      echo "Installing openjdk-$jdk-jdk-headless and Maven by apt ..."
      DEBIAN_FRONTEND=noninteractive attempt apt-get install -qq -y "openjdk-$jdk-jdk-headless" maven >/dev/null
      return
    fi
  done
}

fetch() {  # RELEASE: its jars
  # The filter removes the colour codes that Maven writes even to a file and to stderr with colours off.
  mvn -q -B -Dstyle.color=never --no-transfer-progress -f "$here/pom.xml" "-Dkafka.version=$1" \
    dependency:copy-dependencies -DincludeScope=runtime -DexcludeArtifactIds=slf4j-reload4j,slf4j-log4j12 "-DoutputDirectory=$cache/$1/libs" 2>&1 |
    sed "s/$(printf '\033')\[[0-9;]*m//g"
}

provide() {  # RELEASE
  local libs=$cache/$1/libs
  if [ ! -f "$libs/.complete" ] || [ "$here/pom.xml" -nt "$libs/.complete" ]; then
    echo "Kafka $1: fetching its jars (about 60 MB) ..."
    rm -rf "$libs"
    attempt fetch "$1" || fail "Maven could not fetch Kafka $1: its message is above."
    touch "$libs/.complete"
  fi
}

if lacking && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  install_by_apt || true  # what is still lacking is said next
fi
if lacking; then
  fail "The tests run real Kafka: install a JDK 17 or later and Maven (on Debian and Ubuntu: openjdk-21-jdk-headless, or the release they have, and maven), then try again."
fi

provide "$release"
[ "$release" = "$newest" ] || provide "$newest"

# --release 17, because an older java on the path would refuse classes of a newer javac.
classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
javac -nowarn --release 17 -cp "$cache/$newest/libs/*" -d "$classes/java" "$here"/java/*.java
jar --create --file "$classes/harness.jar" -C "$classes/java" .
# Replaces the file, because running brokers continue with the old one.
mv "$classes/harness.jar" "$cache/harness.jar"

# Archived classes halve the start cost of each JVM of the tests; without them everything works more slowly. Archive.java
# starts a broker without ZooKeeper, which 2.x cannot be.
case $release in 2.*) touch "$cache/.ready-$release"; exit ;; esac
archive=$cache/$release/classes.jsa
mkdir "$classes/$release"
java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit=$classes/$release.jsa" \
  "-Dlog4j2.configurationFile=file:$here/log4j2.properties" "-Dharness.log=$classes/$release.log" \
  -cp "$cache/harness.jar:$cache/$release/libs/*" Archive "$classes/$release" >"$classes/$release.out" 2>&1 ||
  tail -n 5 "$classes/$release.out" "$classes/$release.log" >&2
rm -f "$archive"
[ ! -f "$classes/$release.jsa" ] || mv "$classes/$release.jsa" "$archive"
touch "$cache/.ready-$release"
