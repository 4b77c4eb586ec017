# Octavo. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml CMakeLists.txt $$(find kernels/octavo_kernels/cpu -type f -not -path '*__pycache__*' 2>/dev/null | sort) | sha256sum | cut -c1-12)
TEST_CLUSTER := $(or $(OCTAVO_TEST_CLUSTER),test)
CACHE := $(or $(OCTAVO_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/octavo)

.PHONY: help setup demo demo-down test test-fast lint format acceptance-3 acceptance-4 acceptance-4-native acceptance-5 acceptance-6 acceptance-7 images crds clean distclean

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup: $(STAMP) ## Put the whole environment into .venv

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "Octavo needs Python 3.11 to 3.13, this is %d.%d: run make with PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "Octavo needs a C++20 compiler: install g++ (Debian: apt-get install g++)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "== installing the build tools"
	@$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=24' 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.26' 'ninja>=1.11'
	@echo "== installing Octavo and what it needs (about 5 GB the first time, most of it torch, for the tests)"
	@( while sleep 15; do echo "   … $$(du -sm $(VENV) | cut -f1) MB installed"; done ) & ticker=$$!; \
	  $(BIN)/pip install --disable-pip-version-check --no-build-isolation -e '.[dev]'; status=$$?; kill $$ticker; exit $$status
	@rm -f $(VENV)/.installed-* && touch $@

demo: setup ## Bring up a cluster, install Octavo, apply an InferenceService, chat with it
	@$(BIN)/python -m examples.demo up

demo-down: ## Take the demo's cluster down and leave nothing behind
	@if [ ! -x $(BIN)/python ] && [ ! -e $${OCTAVO_CLUSTER_DIR:-/var/tmp/octavo-cluster}/demo ]; then \
	  echo "no demo is running"; else $(MAKE) --no-print-directory setup && $(BIN)/python -m examples.demo down; fi

test: setup lint ## Everything: lint, unit, API server, cluster
	@echo "== building the cluster under test (about 10 minutes the first time)"
	@$(BIN)/python -m tests.cluster build
	@$(BIN)/python -m pytest; status=$$?; $(BIN)/python -m tests.cluster down --name $(TEST_CLUSTER) && exit $$status

test-fast: setup ## What needs no cluster
	@$(BIN)/python -m pytest -m 'not cluster'

lint: setup ## ruff, mypy --strict, import contracts, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m octavo_operator.api --check
	@$(BIN)/python -m octavo_engine.server.protocol --check

crds: setup ## Write the CRD from its types, for kubectl and for the chart
	@$(BIN)/python -m octavo_operator.api

format: setup ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

acceptance-3: setup ## The long form of the first complete Octavo's acceptance runs
	@$(BIN)/python -m tests.acceptance.issue_3

acceptance-4: setup ## The fast CPU engine's acceptance runs, with the peers: hours on a quiet machine
	@$(BIN)/python -m tests.acceptance.issue_4 --install

acceptance-4-native: setup ## The kernels without Python: every variant, sanitizers, emulated older processors
	@$(BIN)/python -m tests.acceptance.native

acceptance-5: setup ## The hardened engine's acceptance runs: more than an hour
	@$(BIN)/python -m tests.acceptance.issue_5

acceptance-6: setup ## The GPU engine's acceptance runs that need no GPU; TRACE=FILE: conversations in Mooncake's format
	@$(BIN)/python -m tests.acceptance.issue_6 $(if $(TRACE),--trace $(TRACE))

acceptance-7: setup ## The fleet's acceptance runs: hours on a quiet machine; FORM=--short: a minute
	@$(BIN)/python -m tests.acceptance.issue_7 $(FORM)

images: setup ## Build the OCI images
	@$(BIN)/python -m images.build

clean: ## Stop what runs and remove everything built in the tree
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tests.cluster down --mine; fi
	@echo "removing $(VENV) and what was built"
	@rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and the cache outside the tree
	@chmod -R u+w $(CACHE) 2>/dev/null; rm -rf $(CACHE)
