# Every target makes what it needs. `make help` lists them.
# PYTHON=/path/to/python3.12 chooses the Python; TORCH_INDEX=URL the index PyTorch comes from.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first Python that is new enough; else any, so that install.py can say what is wrong with it.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; \
	command -v python3 || true)
RECIPE ?= recipes/quickstart.toml
PYTEST_ARGS ?=
BENCH_ARGS ?= --quick
BENCHMARKS ?= $(sort $(filter-out %/__init__.py %/_%.py,$(wildcard benchmarks/*.py)))

.PHONY: help install demo test test-fast test-slow check format bench clean docs

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## makes .venv with the pinned packages (instant where it is up to date)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "install: no python3 found: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; exit 2; }
	@"$(PYTHON)" scripts/install.py

demo: install ## fetches the model, runs recipes/quickstart.toml and shows what got better
	@$(BIN)/posttrain run $(RECIPE)

test: install ## all tests; the slow ones (the real model) last
	@$(BIN)/pytest $(PYTEST_ARGS)

test-fast: install ## the tests that need no real model
	@$(BIN)/pytest -m "not slow" $(PYTEST_ARGS)

test-slow: install ## only the slow tests
	@$(BIN)/pytest -m slow $(PYTEST_ARGS)

check: install ## ruff, mypy --strict, the table of rooms, size budgets, documentation links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src scripts
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/python scripts/check_docs.py

format: install ## formats the code and mends what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## writes docs/configuration.md from the configuration models
	$(BIN)/python -m posttrain.config.reference

bench: install ## runs the benchmarks (BENCH_ARGS= for full repetitions)
	@for b in $(BENCHMARKS); do echo "== $$b"; $(BIN)/python $$b $(BENCH_ARGS) || exit 1; done

clean: ## removes .venv, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
