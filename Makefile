PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTERS ?= auto

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help up test test-pythons check bench lock clean

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(STAMP) ## start everything on this machine: PostgreSQL, API, worker and three demo companies
	$(BIN)/taketurns up

test: $(STAMP) ## run every test (TESTERS=2 for two processes)
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup

test-pythons: ## run every test on the other supported interpreters of this machine
	scripts/check_pythons

check: $(STAMP) ## format, lint, types, import contracts and schema
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

bench: $(STAMP) ## measure, and write bench/RESULTS.md
	$(BIN)/python -m bench

lock: $(STAMP) ## resolve pyproject.toml again into requirements/
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/lock

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Taketurns needs Python 3.11 or later: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
