# Every verb sets up what it needs. Choose another interpreter with `make PYTHON=python3.12 ...`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A virtual environment cannot be moved, so the stamp carries the folder it was made in.
STAMP := $(VENV)/.ready-$(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
# One torch thread a process: on small networks more threads are slower. Parallelism comes from processes.
export OMP_NUM_THREADS := 1
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint docs bench

help: ## show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make .venv when it is missing or stale (every other verb does this first)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"Esper needs Python 3.11 or newer, this is {sys.version.split()[0]}: try make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv --clear $(VENV) || { echo "Could not make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## train a controller for a few minutes, then judge it on hosts it has never seen
	name=demo-$$(date +%Y%m%d-%H%M%S) && $(BIN)/esper train --preset demo --run-name $$name \
		&& $(BIN)/esper evaluate $$name --episodes 8

test: $(STAMP) ## the fast tests
	$(BIN)/pytest -q -n $(JOBS) -m "not slow"

test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/pytest -q -n $(JOBS) -m slow

lint: $(STAMP) ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## the pages, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP) ## the benchmarks: tables here, JSON in benchmarks/results
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/run.py
