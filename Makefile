# One command a chore; each does its own set-up. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# So many share the integration tests, each with brokers of its own (about 4 GiB). More than cores: they wait most of the time.
PROCESSES ?= 3
READY := $(VENV)/.ready
SPARK := $(VENV)/.spark
SITE := $(VENV)/.site
KAFKA := .cache/kafka/.ready
CONFORMANCE := .cache/conformance/.ready
KUBERNETES := tests/harness/kubernetes/setup.sh
# kind or cluster: what is to be provided for pods; see tests/harness/kubernetes/choosing.py.
CHOSEN = $(BIN)/python -m tests.harness.kubernetes chosen
NODE = $(if $(filter-out 0,$(REQUIRE_CLUSTER)),$$($(CHOSEN)))

# What Python has compiled it keeps, whatever the environment says: hundreds of processes would compile it again.
export PYTHONDONTWRITEBYTECODE :=

help:  ## list the commands
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "%-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "MirrorFlow needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv: install it (python3-venv on Debian and Ubuntu), then try again." >&2; exit 1; }
	@echo "Installing Python packages into $(VENV) (about 60 MB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Half a gigabyte that lint, types and unit tests do without.
$(SPARK): $(READY)
	@echo "Installing PySpark into $(VENV) (about 500 MB) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[seed]'
	@touch $@

$(SITE): $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(KAFKA): tests/harness/kafka/pom.xml tests/harness/kafka/setup.sh $(wildcard tests/harness/kafka/java/*.java)
	@tests/harness/kafka/setup.sh

# After the harness: its set-up sees to a JDK and Maven.
$(CONFORMANCE): $(KAFKA) $(wildcard tests/conformance/pom*.xml) tests/conformance/setup.sh $(shell find tests/conformance/java -type f)
	@tests/conformance/setup.sh

setup: $(READY) $(SPARK) $(KAFKA) $(CONFORMANCE)  ## install everything that the other commands need
	@$(KUBERNETES) $(NODE) || [ "$${REQUIRE_CLUSTER:-0}" = 0 ]

check: $(READY)  ## lint, types, layers, tidiness, unit tests; about 100 s on two cores
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target style types units

# The parts of `check`: two at a time. Unit tests take two processes: nothing else is as long.
style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/mypy

units: $(READY)
	$(BIN)/pytest -q -n 2 --dist worksteal tests/unit tests/contract tests/model

# Kubernetes' control plane is built beside the first tests; a whole node, which needs root and packages, where
# REQUIRE_CLUSTER=1. What is not there is skipped, and says why; with REQUIRE_CLUSTER=1 that is a failure.
test: $(READY)  ## everything, with real Kafka brokers and a real Kubernetes; about 50 minutes on two cores
	@[ -z "$(NODE)" ] || $(KUBERNETES) packages
	@{ $(KUBERNETES) $(NODE) && { [ -z "$(NODE)" ] || $(BIN)/python -m tests.harness.kubernetes images; }; } & build=$$!; \
	$(MAKE) --no-print-directory check $(SPARK) $(KAFKA) $(CONFORMANCE) || { kill $$build 2>/dev/null; exit 1; }; \
	wait $$build || [ "$${REQUIRE_CLUSTER:-0}" = 0 ]
	$(BIN)/pytest -q -rs -n $(PROCESSES) --dist loadfile tests/e2e tests/integration

demo: $(READY) $(KAFKA)  ## two real Kafka clusters, a MirrorFlow between them, a kill -9 in the middle
	@$(BIN)/python -m tests.harness.demo

demo-kubernetes: $(READY) $(KAFKA)  ## the operator by Helm, two secured Kafka clusters, a pod deleted in the middle; as root
	@$(KUBERNETES) packages
	@$(KUBERNETES) $$($(CHOSEN))
	@$(BIN)/python -m tests.harness.demo.kubernetes

cluster: $(READY)  ## a real Kubernetes: kind where it is at hand, else a node of ours, as root; CLUSTER=kind, CLUSTER=node
	@chosen=$$($(CHOSEN)) && { [ $$chosen = kind ] || $(KUBERNETES) packages; } && $(KUBERNETES) $$chosen
	@$(BIN)/python -m tests.harness.kubernetes up

cluster-down: $(READY)  ## end it and leave nothing behind
	@$(BIN)/python -m tests.harness.kubernetes down

bench: $(READY) $(KAFKA)  ## side by side with Java MirrorMaker 2; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

chaos: $(READY) $(KAFKA)  ## several copiers, killed and frozen at random, brokers too: SECONDS=90 RUNS=40 SEED=1 SET="age=old tasks=3"
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),600) --runs $(or $(RUNS),1) $(addprefix --seed ,$(SEED)) $(addprefix --set ,$(SET))

model: $(READY)  ## the product against simulated brokers, thousands of faults: SEEDS=1000 SCENARIO=change_of_age, or EXPLORE=1 RUNS=2000
	$(BIN)/python -m tests.model $(if $(filter-out 0,$(EXPLORE)),--explore $(addprefix --runs ,$(RUNS)),--seeds $(or $(SEEDS),100)) $(addprefix --scenario ,$(SCENARIO))

docs: $(SITE)  ## build the documentation into dist/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

crds: $(READY)  ## write crds/mirrorflows.yaml, and the chart's copy, from the types
	$(BIN)/python -m mirrorflow_operator.api.crd > crds/mirrorflows.yaml
	cp crds/mirrorflows.yaml charts/mirrorflow/files/mirrorflows.yaml

conformance: $(READY) $(CONFORMANCE)  ## Apache's own MM2 tests against our worker, 50 minutes; SUITES="base ssl" TESTS=testReplication WORKERS=3
	@[ "$(COMMAND)" != java ] || tests/conformance/setup.sh --java
	@$(BIN)/python -m tests.conformance $(SUITES) --tests '$(TESTS)' --command '$(COMMAND)' --workers $(or $(WORKERS),1)

format:  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what these commands have made
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.PHONY: help setup check style types units test cluster cluster-down demo demo-kubernetes bench chaos model docs crds conformance format clean
