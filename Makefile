# SwiftQueue: `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The first one that really runs: version managers leave launchers that do not.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
TOOLS := build/tools
STATE := $(or $(SWIFTQUEUE_STATE),var)
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/$(TOOLS):$(PATH)
# Small models train 2-4 times faster on one thread each (docs/LOG.md); Ray gives each worker its own core.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup native native-all compiler setup-tests kustomize kuberay podsecurity apiserver debian debian-marker run lab long-traces lab-full docs wheel agent-dist sbom release test test-all test-fast lint format bench up down status logs lock audit clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

JOBS ?= $(shell nproc)
# All at once, on all cores: what needs no package compiles while packages come from the net.
setup: ## Install what the loop needs, into this folder; the rest is built when it is asked for
	@$(MAKE) --no-print-directory --silent -j$(JOBS) $(VENV)/.synced .venv-triton/.synced native

# Says what it did, or could not do; never a reason to stop.
debian:
	@infra/setup/debian.sh "the C++ sender agent" "the Python client (serving/agent/predictors/reference_client.py) does its work" \
	  g++ libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libcli11-dev prometheus-cpp-dev

debian-marker:
	@infra/setup/debian.sh "marking TCP packets (swiftqueue mark)" "UDP packets are marked without it" clang libbpf-dev libelf-dev iproute2

# Apart from `setup`: with an init system Debian starts both servers, Prometheus on every interface.
setup-tests: setup .venv-docs/.synced .venv-release/.synced kustomize kuberay podsecurity debian-marker ## Install and build what tests need besides: marker, test bed, simulator's tests, Prometheus, PostgreSQL, Chromium, kustomize
	@infra/setup/debian.sh "the tests with Prometheus and PostgreSQL" "those tests are left out" prometheus prometheus-alertmanager postgresql
	@infra/setup/debian.sh "the tests of the live page in a browser" "those tests are left out" chromium
	@$(MAKE) --no-print-directory --silent -j$(JOBS) native-all

# Debian has none. As with its packages: says what it could not do; never a reason to stop.
KUSTOMIZE := sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
kustomize:
	@[ -x $(TOOLS)/kustomize ] || { command -v go >/dev/null && echo "setup: building kustomize" && \
	  GOBIN=$(CURDIR)/$(TOOLS) go install $(KUSTOMIZE); } || \
	  echo "setup: no kustomize, one test is left out; to have it (Go 1.24 or later), run: go install $(KUSTOMIZE)"

# The definitions of RayCluster and RayService lie in the Go module of KubeRay's operator, of the version we ask for.
KUBERAY := github.com/ray-project/kuberay/ray-operator@v1.5.1
kuberay:
	@[ -d $(TOOLS)/kuberay ] || { command -v go >/dev/null && echo "setup: fetching KubeRay's schemas" && \
	  go mod download $(KUBERAY) && install -D -m 644 -t $(TOOLS)/kuberay \
	  "$$(go env GOMODCACHE)"/$(KUBERAY)/config/crd/bases/ray.io_ray{clusters,services}.yaml; } || \
	  echo "setup: no schemas of KubeRay, two tests are left out; with Go 1.24 or later, run again: make setup-tests"

# Kubernetes' own judge of pods, and its API server with etcd: Go programs of the versions in infra/setup/kubernetes.
GO_BUILD := cd infra/setup/kubernetes && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -ldflags='-s -w' -o $(CURDIR)/$(TOOLS)/
podsecurity:
	@[ -x $(TOOLS)/podsecurity ] || { command -v go >/dev/null && mkdir -p $(TOOLS) && \
	  echo "setup: building podsecurity" && $(GO_BUILD) ./podsecurity; } || \
	  echo "setup: no podsecurity, some tests are left out; with Go 1.24 or later, run again: make setup-tests"

apiserver: ## Build the real Kubernetes API server for the tests that ask it (Go; ten minutes on 2 cores)
	@command -v go >/dev/null || { echo "Go 1.24 or later is needed"; exit 1; }
	@mkdir -p $(TOOLS)
	$(GO_BUILD) ./kube-apiserver ./etcd

$(UV): infra/setup/uv.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11, 3.12 or 3.13 is needed, {v[0]}.{v[1]} was found: on Debian run apt-get install python3.11-venv, then make PYTHON=python3.11 $(or $(MAKECMDGOALS),setup); or name another with PYTHON=/path/to/python3.13")'
	@command -v git >/dev/null || { echo "git is needed and was not found; on Debian: apt-get install git"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is needed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r infra/setup/uv.lock
	@touch $@

# Packages of a lock by name: `1` those named, `0` the others.
LOCKED = awk '/^[^ ]/ { kept = /^($(1))==/ } kept == $(2)' $(3)

# C++ is built with these, which are small, while the other packages come.
$(VENV)/.native-packages: requirements.lock $(UV)
	@mkdir -p build
	@$(call LOCKED,ns3|nlohmann-json|tritonclient|protobuf|grpcio|ml-dtypes|numpy|packaging|python-rapidjson|typing-extensions,1,requirements.lock) > build/native.lock
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --require-hashes -r build/native.lock
	@touch $@

# uv shows its own progress; about 3 GB are fetched the first time. Bytecode is made here (a minute), not by whoever imports
# first: Ray starts a dozen processes that all import the same, and some machines are set never to write it.
$(VENV)/.synced: requirements.lock pyproject.toml $(VENV)/.native-packages
	VIRTUAL_ENV=$(VENV) $(UV) pip sync --require-hashes --compile-bytecode requirements.lock
	VIRTUAL_ENV=$(VENV) $(UV) pip install --no-deps --no-build-isolation --quiet --editable .
	@touch $@

# Triton's Python backend needs NumPy 1, so it lives in an environment of its own. NumPy 1 has no wheel for Python 3.13:
# there the environment has ours, and Triton serves the networks that the engine knows, no others.
.venv-triton/.synced: requirements-triton.lock $(VENV)/.synced
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .venv-triton
	lock=requirements-triton.lock; if [ -x .venv-triton/bin/python3.13 ]; then mkdir -p build; lock=build/$$lock; \
	  { $(call LOCKED,numpy,0,requirements-triton.lock); $(call LOCKED,numpy,1,requirements.lock); } > $$lock; fi; \
	  VIRTUAL_ENV=.venv-triton $(UV) pip sync --require-hashes --compile-bytecode $$lock
	$(BIN)/python -m swiftqueue.infra.local.triton_environment
	@touch $@

# The tools of `make docs` lie on the project's own environment, whose packages they find behind their own.
.venv-docs/.synced: requirements-docs.lock $(VENV)/.synced
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .venv-docs
	VIRTUAL_ENV=.venv-docs $(UV) pip sync --require-hashes requirements-docs.lock
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$(.venv-docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/swiftqueue.pth"
	@touch $@

.venv-release/.synced: requirements-release.lock $(VENV)/.synced
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .venv-release
	VIRTUAL_ENV=.venv-release $(UV) pip sync --quiet --require-hashes requirements-release.lock
	@touch $@

docs: setup .venv-docs/.synced ## Build the documents' site in build/site; every link and anchor is checked
	.venv-docs/bin/python -m swiftqueue.infra.site.build

compiler: | debian
	@command -v g++ >/dev/null || { echo "g++ is needed and was not found; on Debian: apt-get install g++"; exit 1; }

# The rooms of C++ that the loop runs on, each after the room whose objects it links.
ENGINE_USERS := serving/triton/native serving/agent simulation
ROOMS := common feature_store models/networks serving/engine serving/triton/front $(ENGINE_USERS)
# Built by whoever asks for them first: `swiftqueue bed`, `mark`, `udp`, a bench, a test (common/native.py).
ON_DEMAND := serving/triton/identity testbed
native: $(ROOMS:%=native-%)
native-all: native $(ON_DEMAND:%=native-%) native-udp native-suites

.PHONY: $(ROOMS:%=native-%) $(ON_DEMAND:%=native-%) native-udp native-suites
# A room that was up to date says nothing, however long the look took. The + hands the cores on to it. Its Python is the
# environment's, whichever `make PYTHON=...` made that of.
BUILD = begin=$${EPOCHREALTIME/,/.}; $(MAKE) --no-print-directory -C $(1) PYTHON=$(CURDIR)/$(BIN)/python && \
  { ((SECONDS < 2)) || [ -z "$$(find $(firstword $(1))/_build build/$(firstword $(1)) -type f -newermt "@$$begin" \
  -print -quit 2>/dev/null)" ] || echo "setup: built $(1) ($$SECONDS s)"; }
$(ROOMS:%=native-%) $(ON_DEMAND:%=native-%): native-%: | compiler
	+@$(call BUILD,$*)
native-udp: native-serving/agent
	+@$(call BUILD,serving/agent udp)
native-suites: native-simulation
	+@$(call BUILD,simulation tests)
native-serving/engine: native-feature_store
$(ENGINE_USERS:%=native-%): native-serving/engine
native-serving/engine native-serving/agent native-simulation: $(VENV)/.native-packages  # JSON, the protocol's description, ns-3

run: setup ## The main job: traces to a served prediction, replayed; ends with where to look next
	swiftqueue run

lab: setup ## The L4S laboratory: the published model on a small link beside its controls, and the report (minutes)
	swiftqueue lab run small --artifact docs/laboratory/models/figure8
	swiftqueue lab report small

LONG_TRACES := web web-varying video video-varying
long-traces: $(LONG_TRACES:%=long-trace-%) ## Half an hour each of four kinds of traffic, in data/long (20 minutes; docs/TRACES.md)
long-trace-%: setup
	@[ -d data/long/packets/trace=long-$* ] || { \
	  pipelines/run laboratory.learning.long_trace --scenario simulation/scenarios/long-$*.yaml --output data/long/$* && \
	  pipelines/run extract --output data/long/packets --trace long-$* --file data/long/$*/s1.pcap --sender None --latency selective; }

LAB_MODELS := var/lab/models/figure8
lab-full: setup ## The full laboratory: models, figure 8, sweeps, maps, 500 flows, report (some 19 hours of CPU; resumes)
	[ -d $(LAB_MODELS)/rfc9332 ] && [ -d $(LAB_MODELS)/uncoupled -o -d $(LAB_MODELS)/premise ] || swiftqueue lab train figure8
	swiftqueue lab run --full --artifact $(LAB_MODELS)
	swiftqueue lab report

test: setup ## The tests that each change must pass, against real services
	infra/setup/test.sh

test-all: export SWIFTQUEUE_TEST_ALL := 1
test-all: setup ## All of it: every fault at every step, a million mutants of each input, whole grids (hours)
	infra/setup/test.sh

test-fast: setup ## The unit tests that need no service and no training (a minute)
	pytest tests/unit -m "not slow and not long" -n 3 --dist worksteal

lint: setup ## ruff, mypy, clang-format, codespell, the locks
	infra/setup/lint.sh

format: setup ## Rewrite Python and C++ sources in the project's format
	ruff check --fix-only --quiet . && ruff format --quiet .
	git ls-files '*.h' '*.cc' | xargs --no-run-if-empty clang-format -i

bench: setup ## Measure the main figures, each beside its reference
	swiftqueue bench extract
	swiftqueue bench finetune
	swiftqueue bench inference
	swiftqueue bench serving
	swiftqueue bench linerate
	swiftqueue bench swap
	swiftqueue bench live
	swiftqueue bench ingest
	swiftqueue bench marker

# What asks for the loop knows which `down` came before it: one that comes during the setup holds (infra/local/under_way.py).
up run: export SWIFTQUEUE_DOWN := $(or $(shell cat $(STATE)/live/down 2>/dev/null),none)

up: setup ## Start the live loop: servers, telemetry, a replaying sender, a fine-tune every five minutes
	swiftqueue up --live $(ARGS)

down: ## Stop whatever runs of it; no process, port or temporary file stays
	@if [ -x $(BIN)/swiftqueue ]; then swiftqueue down; else \
	  mkdir -p $(STATE)/live && cat /proc/sys/kernel/random/uuid > $(STATE)/live/down; \
	  echo "not set up yet, so nothing of it runs; a \`make up\` under way starts nothing"; fi

status: ## Judge each part by a real request; the served version and its age
	@if [ -x $(BIN)/swiftqueue ]; then swiftqueue status; else \
	  echo "not set up yet, so nothing of it runs: make up"; exit 1; fi

logs: ## The last lines of every part's log; make logs FOLLOW=1 goes on
	@tail -n 15 $(if $(FOLLOW),-F) $(STATE)/*/server.log $(wildcard $(STATE)/ingest/replicas.log)

wheel: setup ## Build the library as a wheel, its native parts inside, in build/dist
	rm -rf build/lib build/bdist.* build/dist
	$(UV) build --quiet --wheel --no-build-isolation --offline --python $(BIN)/python --out-dir build/dist .
	@ls build/dist/*.whl

agent-dist: setup ## Build the agent as a Debian package and as a tar with a systemd unit, in build/dist
	@infra/setup/agent_dist.sh

# Packages of both environments with their licences and what each needs; each list is checked against the format.
DIST := build/dist
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
sbom: .venv-release/.synced $(VENV)/.synced .venv-triton/.synced
	@mkdir -p $(DIST)
	.venv-release/bin/cyclonedx-py environment $(SBOM_FLAGS) --output-reproducible --pyproject pyproject.toml \
	  -o $(DIST)/swiftqueue-$(VERSION).cdx.json $(VENV)
	.venv-release/bin/cyclonedx-py environment $(SBOM_FLAGS) --output-reproducible \
	  -o $(DIST)/swiftqueue-triton-$(VERSION).cdx.json .venv-triton

release: setup ## Build what a release hands out in build/dist: wheel, agent, lists of packages (SBOM), checksums
	@for part in wheel agent-dist sbom; do $(MAKE) --no-print-directory $$part || exit 1; done
	@cd $(DIST) && sha256sum -- *.* > SHA256SUMS && cat SHA256SUMS

lock: ## Resolve infra/setup/requirements*.in into the four locks
	$(UV) pip compile infra/setup/requirements.in --override infra/setup/overrides.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate -o requirements.lock
	$(UV) pip compile infra/setup/requirements-triton.in --no-deps --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_35 --generate-hashes --no-header --no-annotate -o requirements-triton.lock
	@mkdir -p build && sed 's/ \\$$//; /^ *--hash/d' requirements.lock > build/locked.txt
	$(UV) pip compile infra/setup/requirements-docs.in --constraint build/locked.txt --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate -o requirements-docs.lock
	$(UV) pip compile infra/setup/requirements-release.in --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate -o requirements-release.lock

audit: ## Ask PyPI for known vulnerabilities of all that the locks name (needs the net)
	for lock in requirements.lock requirements-triton.lock requirements-docs.lock requirements-release.lock infra/setup/uv.lock; do \
	  pip-audit --disable-pip --require-hashes --progress-spinner=off -r $$lock || exit 1; done

clean: ## Remove what was built (environments, DVC data and var/ stay)
	rm -rf build $(addsuffix /_build,$(ROOMS) $(ON_DEMAND)) studies/*/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
