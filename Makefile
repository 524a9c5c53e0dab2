# One command a chore; each does its own set-up. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# So many share the tests on real Kafka, each with two brokers of its own (about 1.5 GiB). More than cores: they wait most of the time.
PROCESSES ?= 3
READY := $(VENV)/.ready
SPARK := $(VENV)/.spark
SITE := $(VENV)/.site
RELEASE := $(VENV)/.release
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --retries 3 --constraint constraints.txt
OBJECT_STORE := .cache/object-store/.ready
CONNECT := .cache/spark-connect/.ready
KAFKA := .cache/kafka/.ready-4.3.1
KAFKA_OTHERS := $(addprefix .cache/kafka/.ready-,2.8.2 3.4.1 3.9.1 4.4.0)
CONFORMANCE := .cache/conformance/.ready
KUBERNETES := tests/harness/kubernetes/setup.sh
HELM := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mirrorflow/kubernetes/helm/helm
# kind or cluster: what is to be provided for pods; see tests/harness/kubernetes/choosing.py.
CHOSEN = $(BIN)/python -m tests.harness.kubernetes chosen
NODE = $(if $(filter-out 0,$(REQUIRE_CLUSTER)),$$($(CHOSEN)))

# Which tests a command runs; what the markers mean is in pyproject.toml. A test without a marker runs in `make test`.
SELECT_test := promise or not (java or spark or api_server or node or more or faults or timing or fuzz)
SELECT_kafka := more and not (promise or java or spark or api_server or node or faults or timing or fuzz)
SELECT_faults := (faults or timing or fuzz) and not (promise or java or spark or api_server or node)
SELECT_java := java and not (promise or api_server or node)
SELECT_spark := spark and not (promise or java or api_server or node)
SELECT_cluster := (api_server or node) and not promise
PARALLEL = $(MAKE) --keep-going --jobs=2 --output-sync=target
PYTEST = $(BIN)/pytest -q -rfEs --durations=25 -n $(PROCESSES) --dist loadfile --junitxml=.cache/junit/$@.xml

# What Python has compiled it keeps, whatever the environment says: hundreds of processes would compile it again.
export PYTHONDONTWRITEBYTECODE :=

help:  ## list the commands
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "%-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "MirrorFlow needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv: install it (python3-venv on Debian and Ubuntu), then try again." >&2; exit 1; }
	@echo "Installing Python packages into $(VENV) (about 60 MB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@

# Half a gigabyte that lint, types and unit tests do without.
$(SPARK): $(READY)
	@echo "Installing PySpark into $(VENV) (about 550 MB) ..."
	@$(PIP) --editable '.[dev-seed]'
	@touch $@

# In an environment of its own: it cannot be installed beside the Kubernetes client.
$(OBJECT_STORE): tests/harness/object_store/requirements.txt
	@echo "Installing an object store for tests into .cache/object-store (about 150 MB) ..."
	@$(PYTHON) -m venv .cache/object-store/venv
	@.cache/object-store/venv/bin/pip install --quiet --disable-pip-version-check --retries 3 --requirement $<
	@touch $@

# What only clients of Spark Connect need; classic sessions are tested without pandas.
$(CONNECT): tests/harness/spark/connect_client.txt $(SPARK)
	@echo "Installing the client of Spark Connect into .cache/spark-connect (about 150 MB) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --retries 3 --upgrade --target .cache/spark-connect/packages --requirement $<
	@touch $@

$(SITE): $(READY)
	@$(PIP) --editable '.[docs]'
	@touch $@

$(RELEASE): $(READY)
	@$(PIP) --editable '.[release]'
	@touch $@

$(KAFKA) $(KAFKA_OTHERS): .cache/kafka/.ready-%: tests/harness/kafka/pom.xml tests/harness/kafka/setup.sh $(wildcard tests/harness/kafka/java/*.java)
	@tests/harness/kafka/setup.sh $*

# After the harness: its set-up sees to a JDK and Maven.
$(CONFORMANCE): $(KAFKA) $(wildcard tests/conformance/pom*.xml) tests/conformance/setup.sh $(shell find tests/conformance/java -type f)
	@tests/conformance/setup.sh

setup: $(READY) $(SPARK) $(KAFKA) $(KAFKA_OTHERS) $(OBJECT_STORE) $(CONNECT) $(CONFORMANCE)  ## install everything that the other commands need
	@$(KUBERNETES) $(NODE) || [ "$${REQUIRE_CLUSTER:-0}" = 0 ]

check: $(READY)  ## lint, types, layers, tidiness, unit tests; about a minute on two cores
	@$(PARALLEL) style types units

# The parts of `check`: two at a time. Unit tests take two processes: nothing else is as long.
style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/mypy

units: $(READY)
	$(BIN)/pytest -q -n 2 --dist worksteal -m 'not (faults or timing or fuzz)' tests/unit tests/contract tests/model

# Maven fetches Kafka beside the unit tests.
test: $(SPARK)  ## check, and each promise of the README on real Kafka brokers and on Spark
	@$(PARALLEL) $(KAFKA) style types units
	$(PYTEST) -m '$(SELECT_test)' tests/integration

test-kafka: $(READY) $(SPARK) $(KAFKA)  ## more of the same on Kafka
	$(PYTEST) -m '$(SELECT_kafka)' tests/integration

test-faults: $(READY) $(SPARK) $(KAFKA)  ## kills, freezes, lost leaders, full disks, timing, random inputs
	$(PYTEST) -m '$(SELECT_faults) or hypothesis' --hypothesis-profile=fuzz tests

test-java: $(READY) $(SPARK) $(KAFKA) $(KAFKA_OTHERS) $(CONFORMANCE)  ## beside Java MirrorMaker 2 and Connect, and on Kafka 2.8, 3.4, 3.9 and 4.4
	$(PYTEST) -m '$(SELECT_java)' tests/integration

test-spark: $(READY) $(SPARK) $(KAFKA) $(OBJECT_STORE) $(CONNECT)  ## seeds, verification and archives
	$(PYTEST) -m '$(SELECT_spark)' tests/integration

# A node needs root and packages; it is left out, and its tests say so, unless REQUIRE_CLUSTER=1.
test-cluster: $(READY) $(SPARK) $(KAFKA)  ## the operator on a real Kubernetes; the first time builds it, 15 minutes; REQUIRE_CLUSTER=1
	@[ -z "$(NODE)" ] || $(KUBERNETES) packages
	@$(KUBERNETES) $(NODE)
	@[ -z "$(NODE)" ] || { $(KUBERNETES) argocd && $(KUBERNETES) oauth2-proxy; }
	@[ -z "$(NODE)" ] || $(BIN)/python -m tests.harness.kubernetes images
	@$(MAKE) release-dry-run
	$(PYTEST) -m '$(SELECT_cluster)' tests/integration tests/e2e

test-all: test test-kafka test-faults test-java test-spark test-cluster  ## all of the above, one after the other

lock: $(READY)  ## renew constraints.txt: the newest versions that pyproject.toml allows
	@rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	@$(VENV)/lock/bin/pip install --quiet --disable-pip-version-check --upgrade '.[dev,dev-seed,docs,release]'
	@{ sed -n '/^#/p' constraints.txt; $(VENV)/lock/bin/pip freeze --exclude mirrorflow; } > constraints.new && mv constraints.new constraints.txt

release-dry-run: $(RELEASE) $(SPARK)  ## build all of a release that needs no network, into dist/release; needs Go where there is no helm
	@command -v helm >/dev/null || $(KUBERNETES) helm
	@$(BIN)/python -m release --helm "$$(command -v helm || echo $(HELM))" $(addprefix --tag ,$(TAG)) $(addprefix --registry ,$(REGISTRY))

pin:  ## name the images' base image by its digest, before a release; needs Docker
	@base=$$(sed -n 's/^ARG PYTHON=\([^@]*\).*/\1/p' Dockerfile) \
	    && digest=$$(docker buildx imagetools inspect "$$base" --format '{{.Manifest.Digest}}') \
	    && sed -i "s|^ARG PYTHON=.*|ARG PYTHON=$$base@$$digest|" Dockerfile && sed -n '/^ARG PYTHON=/p' Dockerfile

demo: $(READY) $(KAFKA)  ## two real Kafka clusters, a MirrorFlow between them, a kill -9 in the middle; UI=1: then the console, until Ctrl-C
	@$(BIN)/python -m tests.harness.demo $(if $(filter-out 0,$(UI)),--ui)

demo-switchover: $(READY) $(KAFKA)  ## a Java producer and a Java consumer group are moved to another cluster and back
	@$(BIN)/python -m tests.harness.demo.switchover

demo-kubernetes: $(READY) $(KAFKA)  ## the operator by Helm, two secured Kafka clusters, a pod deleted in the middle; as root; UI=1: then the console
	@$(KUBERNETES) packages
	@$(KUBERNETES) $$($(CHOSEN))
	@$(BIN)/python -m tests.harness.demo.kubernetes $(if $(filter-out 0,$(UI)),--ui)

cluster: $(READY)  ## a real Kubernetes: kind where it is at hand, else a node of ours, as root; CLUSTER=kind, CLUSTER=node
	@chosen=$$($(CHOSEN)) && { [ $$chosen = kind ] || $(KUBERNETES) packages; } && $(KUBERNETES) $$chosen
	@$(BIN)/python -m tests.harness.kubernetes up

cluster-down: $(READY)  ## end it and leave nothing behind
	@$(BIN)/python -m tests.harness.kubernetes down

screenshots: $(READY) $(KAFKA)  ## renew the pictures of the console in docs/images; needs Chromium (apt install chromium)
	@$(BIN)/python -m tests.harness.demo.screenshots

bench: $(READY) $(KAFKA)  ## side by side with Java MirrorMaker 2; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

chaos: $(READY) $(KAFKA)  ## several copiers, killed and frozen at random, brokers too: SECONDS=90 RUNS=40 SEED=1 SET="age=old tasks=3"
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),600) --runs $(or $(RUNS),1) $(addprefix --seed ,$(SEED)) $(addprefix --set ,$(SET))

chaos-switchover: $(READY) $(KAFKA)  ## Java clients are moved between two clusters and back while commands, flows and brokers are killed: RUNS=100 SEED=1 SET="faults=brokers"
	$(BIN)/python -m tests.chaos.switchover --seconds $(or $(SECONDS),20) --runs $(or $(RUNS),1) $(addprefix --seed ,$(SEED)) $(addprefix --set ,$(SET))

docs: $(SITE)  ## build the documentation into dist/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

crds: $(READY)  ## write crds/, and the chart's copy, from the types
	for plural in mirrorflows mirrorpairs switchovers; do \
		$(BIN)/python -m mirrorflow_operator.api.crd $$plural > crds/$$plural.yaml || exit 1; \
		cp crds/$$plural.yaml charts/mirrorflow/crds/$$plural.yaml; \
	done

conformance: $(READY) $(CONFORMANCE)  ## Apache's own MM2 tests, on Kafka 4.4, 4.3 and 3.9, against our worker; SUITES="base ssl" TESTS=testReplication WORKERS=3 VERSIONS=4.3.1
	@[ "$(COMMAND)" != java ] || tests/conformance/setup.sh --java
	@$(BIN)/python -m tests.conformance $(SUITES) $(addprefix --kafka ,$(VERSIONS)) --tests '$(TESTS)' --command '$(COMMAND)' --workers $(or $(WORKERS),1)

compatibility: $(READY) $(KAFKA)  ## what holds between two clusters, as a file: SOURCE=4.4.0 TARGET=broker:9092 TARGET_CLIENT=client.properties TARGET_NAME=...
	@$(BIN)/python -m tests.compatibility --source '$(SOURCE)' --target '$(TARGET)' $(if $(SOURCE_NAME),--source-name '$(SOURCE_NAME)') $(if $(TARGET_NAME),--target-name '$(TARGET_NAME)') $(if $(SOURCE_CLIENT),--source-client '$(SOURCE_CLIENT)') $(if $(TARGET_CLIENT),--target-client '$(TARGET_CLIENT)') $(if $(OUT),--out '$(OUT)')

compatibility-table: $(READY)  ## write the table in docs/which-kafkas.md from tests/compatibility/results
	@$(BIN)/python -m tests.compatibility table

format:  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what these commands have made
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

MAKEFLAGS += --no-print-directory

.PHONY: help setup check style types units test test-kafka test-faults test-java test-spark test-cluster test-all lock release-dry-run pin cluster cluster-down demo demo-switchover demo-kubernetes screenshots bench chaos chaos-switchover docs crds conformance compatibility compatibility-table format clean
