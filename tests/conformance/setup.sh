#!/usr/bin/env bash
# Brings Apache Kafka's own tests of MirrorMaker 2, of 4.3.1 and 3.9.1, into .cache/conformance, and compiles what stands
# before them. With brokers 4.4.0 the tests of 4.3.1 run. With --java, Apache's own worker too. Idempotent; the file .ready is
# touched last.
# A JDK and Maven are there: the set-up of the harness (tests/harness/kafka/setup.sh) goes before this one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/conformance
mkdir -p "$cache"

fetch() {  # pom, folder, version of Kafka, version of the tests
  if [ ! -f "$2/.complete" ] || [ "$1" -nt "$2/.complete" ]; then
    rm -rf "$2"
    mvn -q -B -Dstyle.color=never --no-transfer-progress -f "$1" \
      "-Dkafka.version=$3" "-Dtests.version=$4" dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$2" 2>&1 |
      sed "s/$(printf '\033')\[[0-9;]*m//g"  # Maven colours even what goes to no terminal
    touch "$2/.complete"
  fi
}

classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
for version in 4.4.0 4.3.1 3.9.1; do
  own=$cache/$version
  tests=$version
  [ "$version" != 4.4.0 ] || tests=4.3.1
  [ -d "$own/libs" ] || echo "Apache Kafka's own tests, $version: fetching their jars (about 30 MB) ..."
  fetch "$here/pom.xml" "$own/libs" "$version" "$tests"
  find "$here/java" -name '*.java' -print0 |
    xargs -0 javac -nowarn --release 17 -cp "$own/libs/*" -d "$classes/$version"
  cp -r "$here/java/META-INF" "$classes/$version/"
  jar --create --file "$classes/shims.jar" -C "$classes/$version" .
  mv "$classes/shims.jar" "$own/shims.jar"  # a new file, so a run that is under way keeps the old one
done
[ "${1:-}" != --java ] || fetch "$here/pom-java.xml" "$cache/java-libs" 4.3.1 4.3.1
touch "$cache/.ready"
