#!/usr/bin/env bash
# Brings Apache Kafka's own tests of MirrorMaker 2 into .cache/conformance, and compiles what stands before them.
# With --java, Apache's own worker too. Idempotent; the file .ready is touched last.
# A JDK and Maven are there: the set-up of the harness (tests/harness/kafka/setup.sh) goes before this one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/conformance
mkdir -p "$cache"

fetch() {  # pom, folder
  if [ ! -f "$2/.complete" ] || [ "$1" -nt "$2/.complete" ]; then
    rm -rf "$2"
    mvn -q -B -Dstyle.color=never --no-transfer-progress -f "$1" \
      dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$2" 2>&1 |
      sed "s/$(printf '\033')\[[0-9;]*m//g"  # Maven colours even what goes to no terminal
    touch "$2/.complete"
  fi
}

[ -d "$cache/libs" ] || echo "Apache Kafka's own tests: fetching their jars (about 30 MB) ..."
fetch "$here/pom.xml" "$cache/libs"
[ "${1:-}" != --java ] || fetch "$here/pom-java.xml" "$cache/java-libs"

classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
find "$here/java" -name '*.java' -print0 |
  xargs -0 javac -nowarn --release 17 -cp "$cache/libs/*" -d "$classes/java"
cp -r "$here/java/META-INF" "$classes/java/"
jar --create --file "$classes/shims.jar" -C "$classes/java" .
mv "$classes/shims.jar" "$cache/shims.jar"  # a new file in the place of the old: a run that is under way goes on with that
touch "$cache/.ready"
