PYTHON ?= python3
VENV ?= .venv
# Twice as many as there are cores: tests wait a good deal.
TESTERS ?= $(shell $(PYTHON) -c 'import os; print(2 * os.cpu_count())')
TESTS ?=
UPGRADE ?=
SMALL ?=
PEERS ?=
SCENARIOS ?=
ONLY ?=
MOST ?=
MINUTES ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.installed-bench
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Whatever is set around it: what no process may keep, every one of the many that tests start compiles again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help up test test-pythons browser check bench bench-fairness bench-growth bench-soak bench-peers bench-check
.PHONY: screenshots lock clean

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

up: $(INSTALLED) ## start PostgreSQL, the API and a worker here, with three demo companies
	@$(BIN)/taketurns up

test: $(INSTALLED) ## run the tests (TESTS="tests/engine -k retry", TESTERS=2 sets processes)
	@$(BIN)/python -m pytest -n $(TESTERS) $(TESTS)

test-pythons: ## run the tests on every other supported Python found here
	+@PYTHON="$(PYTHON)" scripts/check_pythons $(TESTS)

browser: $(INSTALLED) ## install what the tests in a browser need, besides Chromium itself
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements/browser.txt
	@command -v chromium >/dev/null || echo 'Chromium is missing: apt-get install chromium'

screenshots: browser ## take the pictures of the README anew, in docs/
	@$(BIN)/python scripts/screenshots.py

check: $(INSTALLED) ## check format, lint, types, import contracts, schema and advisories
	@PATH="$(abspath $(BIN)):$$PATH" scripts/check

bench: $(BENCH_INSTALLED) ## measure, and write bench/RESULTS.md
	@$(BIN)/python -m bench

bench-fairness: $(BENCH_INSTALLED) ## measure fairness beside FIFO and LATERAL, and draw bench/plots (SMALL=1 tries it)
	@$(BIN)/python -m bench fairness $(if $(SMALL),--small)

bench-growth: $(BENCH_INSTALLED) ## measure against what grows, half an hour (ONLY=claim|workers|history|snapshot, MOST=1000000, SMALL=1)
	@$(BIN)/python -m bench growth $(if $(ONLY),--only $(ONLY)) $(if $(MOST),--most $(MOST)) $(if $(SMALL),--small)

bench-soak: $(BENCH_INSTALLED) ## watch the tables under half the top rate for half an hour (MINUTES=10, SMALL=1)
	@$(BIN)/python -m bench soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SMALL),--small)

bench-check: $(INSTALLED) ## tell which recorded ratios got worse by more than 15 %
	@$(BIN)/python -m bench check

bench-peers: $(BENCH_INSTALLED) ## measure beside other task queues (PEERS="graphile bullmq", SCENARIOS=drain, SMALL=1)
	@$(BIN)/python -m bench.peers $(if $(PEERS),--peers $(PEERS)) $(if $(SCENARIOS),--scenarios $(SCENARIOS)) $(if $(SMALL),--small)

lock: $(INSTALLED) ## resolve pyproject.toml into requirements/ (UPGRADE=1 takes the newest releases)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/lock $(if $(UPGRADE),--upgrade)

clean: ## remove virtual environments and caches
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Taketurns needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	@echo 'Installing into $(VENV) ...'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_INSTALLED): requirements/bench.txt $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements/bench.txt
	@touch $@
