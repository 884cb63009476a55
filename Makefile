# `make` lists the targets. Everything runs from the virtual environment that `setup` makes.

SHELL := /bin/bash
PYTHON := .venv/bin/python
# podman, networks and volumes need root; where make does not run as root, sudo is asked.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$(PATH)")
PYTEST := $(PYTHON) -m pytest $(PYTEST_ARGS)
HALVES := $(PYTHON) -m tests.halves $(PYTEST_ARGS)
SEED ?= 1
FUZZ_COUNT ?= 100000
FUZZ_SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d " ")

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-unit test-simulation test-integration test-cluster test-hosts \
	coredns flannel etcd simulate chaos planted bench bench-edge bench-scale bench-quick bench-packing \
	docs lint types format lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what this machine lacks: Debian packages, .venv, images (quick when all is there)
	@deploy/setup/setup.sh

demo: setup ## a cluster of three on this machine: a job, its name, a request, a lost node (KEEP=1 keeps it)
	@$(ROOT) env KEEP="$(KEEP)" $(PYTHON) -m ozymandias.cluster.demo

test: setup lint types ## everything: lint, types, all tests, and that nothing is left behind
	@$(ROOT) $(PYTHON) deploy/setup/leftovers.py $(MAKE) --no-print-directory test-all

test-all: test-unit test-simulation test-integration test-cluster

test-unit: setup ## pure decisions and house rules, in seconds
	$(PYTEST) -n 2 tests/unit

test-simulation: setup ## whole clusters in virtual time
	$(PYTEST) tests/simulation

test-integration: setup coredns etcd ## one real thing at a time: etcd, podman, the edges
	$(ROOT) $(HALVES) tests/integration

test-cluster: setup coredns flannel ## real daemons on real etcd and podman: kill, restart, heal
	$(ROOT) $(HALVES) -m "not long" tests/cluster tests/docs

test-hosts: setup coredns flannel ## all about hosts, with etcd away for minutes: on a quiet machine
	$(ROOT) env OZY_LONG=1 $(PYTEST) -k "hosts or peers or etcd" tests/cluster

coredns: setup ## build the CoreDNS that tests compare with (some minutes once, then cached)
	@$(ROOT) $(PYTHON) deploy/coredns/build.py >/dev/null

flannel: setup ## build the flanneld that test hosts run (some minutes once, then cached)
	@$(ROOT) $(PYTHON) deploy/flannel/build.py >/dev/null

etcd: setup ## build a newer etcd than Debian's, to test against both (some minutes once, then cached)
	@$(ROOT) $(PYTHON) deploy/etcd/build.py >/dev/null

simulate: setup ## whole clusters in virtual time: SEED=7 replays one, MINUTES=10 searches; ARGS=--help
	@$(PYTHON) -m ozymandias.sim --seed $(SEED) \
		$(if $(MINUTES),--minutes $(MINUTES) --jobs $(shell nproc)) $(ARGS)

chaos: setup coredns flannel ## break real hosts under load: MINUTES=5 SEED=1 ARGS="--hosts 5 --report FILE"
	@$(ROOT) $(PYTHON) -m tests.chaos --minutes $(or $(MINUTES),5) --seed $(SEED) $(ARGS)

planted: setup ## does the simulator find bugs? Plants one at a time and counts the seeds it takes
	@$(PYTHON) tests/simulation/planted/run.py $(ARGS)

fuzz: setup ## inputs made to break things: make fuzz FUZZ_COUNT=1000 FUZZ_SEED=7
	@set -e; for file in tests/fuzz/fuzz_*.py; do \
		$(ROOT) $(PYTHON) -m tests.fuzz.$$(basename $$file .py) --count $(FUZZ_COUNT) --seed $(FUZZ_SEED); \
	done

bench: setup ## the figures, one JSON line each
	@$(ROOT) $(PYTHON) -m bench

docs: setup ## write docs/cli.md, docs/man, docs/api.md and docs/openapi.json anew from the code
	$(PYTHON) -m ozymandias.cli.manual docs
	$(PYTHON) -m ozymandias.api.manual docs

bench-edge: setup coredns ## what the edges do per CPU-second, against others
	@$(ROOT) $(PYTHON) -m bench.dns
	@$(ROOT) $(PYTHON) -m bench.ingress

# The solver lives in an environment of its own: neither the product nor its tests need it.
PACKING := .cache/packing
$(PACKING)/ready: bench/packing/requirements.lock
	@python3 -m venv --clear $(PACKING)
	@$(PACKING)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

bench-packing: $(PACKING)/ready ## how well it packs, against the optimum and others: SEED=1000 (below: for tuning)
	@PYTHONPATH=. $(PACKING)/bin/python -m bench.packing --jobs $(shell nproc) \
		$(if $(filter file,$(origin SEED)),,--seed $(SEED)) $(ARGS)

bench-scale: setup ## a million instances on five thousand simulated nodes: ARGS="--only loss --factor 0.5"
	@$(PYTHON) -m bench.scale $(ARGS)

bench-quick: setup ## a tenth of bench-scale, of the shape with a node per instance a hundredth: in a minute or two
	@$(PYTHON) -m bench.scale --factor 0.1 --jobs 100 --only million --shapes apart
	@$(PYTHON) -m bench.scale --factor 0.1 --shapes ten uncapped $(ARGS)

lint: setup ## ruff: rules and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup ## mypy, strict
	.venv/bin/mypy

format: setup ## let ruff put the format right
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format .

lock: ## write requirements.lock anew from pyproject.toml, and the one of bench/packing
	@deploy/setup/lock.sh

clean: ## remove what setup and the tools made in this directory (not packages, not images)
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
