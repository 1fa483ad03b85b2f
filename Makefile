# Every verb sets up what it needs. Choose another interpreter with `make PYTHON=python3.12 ...`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A virtual environment can neither be moved nor change its interpreter, so the stamps carry the folder it was made in and the
# version. CORE runs the demo; STAMP has all extras and what tests.
HERE := $(shell printf %s "$(CURDIR) $$($(PYTHON) -V)" | cksum | cut -d' ' -f1)
CORE := $(VENV)/.core-$(HERE)
STAMP := $(VENV)/.ready-$(HERE)
# pip downloads and unpacks in silence; something else has to say that it goes on.
AUDIBLY := $(PYTHON) scripts/audibly.py $(VENV)
PIP := $(AUDIBLY) $(BIN)/pip install --quiet --disable-pip-version-check --progress-bar off --constraint constraints.txt --editable
# One torch thread a process: on small networks more threads are slower. Parallelism comes from processes.
export OMP_NUM_THREADS := 1
# Where compiled tests and modules are not kept, every process compiles all of them.
export PYTHONDONTWRITEBYTECODE :=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint docs bench

help: ## show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make .venv when it is missing or stale (every other verb does this first)

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"Esper needs Python 3.11 or newer, this is {sys.version.split()[0]}: try make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv --clear $(VENV) || { echo "Could not make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing what Esper needs, a minute or two with a fast network: 1.6 GB with the CPU build of PyTorch, 5.4 GB with CUDA."
	@$(PIP) .
	@touch $@

$(STAMP): $(CORE)
	@echo "Installing what the tests need as well, 1.1 GB more."
	@$(PIP) '.[dev]'
	@touch $@

demo: $(CORE) ## see networks grow when their data change, adapters grow, and a controller learn
	@echo "Loading PyTorch: a few seconds."
	@$(BIN)/python examples/demo.py

test: $(STAMP) ## the fast tests
	@echo "Collecting the tests takes each of $(JOBS) processes a while; the first dots come after that, the last ones three to six minutes later."
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "not slow"

test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m slow

lint: $(STAMP) ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## the pages, in build/site; a broken link fails
	@echo "Building the pages: some 20 seconds the first time, without a word."
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

bench: $(STAMP) ## the benchmarks: tables here, JSON in benchmarks/results
	$(BIN)/python benchmarks/run.py
