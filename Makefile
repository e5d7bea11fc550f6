# One virtual environment serves every target. Each target installs only what it needs on top of what is there, and a
# stamp (.venv/.demo, .venv/.test ...) says that it did; a change of pyproject.toml makes the stamps old.
PYTHON ?= python3
BIN    := .venv/bin
MINUTES ?= 5
SEEDS   ?= 2000
KIND    ?= lock
WORKERS ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# Compiled modules are kept, whatever the machine is set to: tests and demo start hundreds of interpreters.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-all soak simulate check twins bench docs clean

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-8s  %s\n", $$1, $$2 }' Makefile

demo: .venv/.demo  ## watch locks survive failing nodes
	@PYTHONPATH="$(CURDIR)" $(BIN)/python -m redsync.cli demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: .venv/.test  ## run the tests, without the sweeps; ARGS="-k lock -x" goes to pytest
	@$(PYTEST) -m "not sweep" $(ARGS)

test-all: .venv/.test .venv/.examples  ## run all tests; ARGS="-m sweep": what `make test` leaves out
	@$(PYTEST) $(ARGS)

soak: .venv/.test  ## run the test of random faults for MINUTES=5; NETWORK=1: behind a router (root, Linux)
	@REDSYNC_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(if $(NETWORK),REDSYNC_SOAK_NETWORK=1) \
	  $(BIN)/python -m pytest -s tests/soak/test_$(if $(NETWORK),outages,soak).py $(ARGS)

simulate: .venv/.test  ## run the simulator with SEEDS=2000 seeds of KIND=lock, or any other (see docs/testing.md)
	@$(BIN)/python -m redsync.testing.simulator --seeds $(SEEDS) --kind $(KIND) $(ARGS)

check: .venv/.dev  ## style, types, architecture, documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/twins.py --check
	@$(BIN)/python tools/figures.py --check
	@$(BIN)/mypy
	@$(BIN)/mypy --strict tools
	@cd tests/typing && ../../$(BIN)/mypy --strict --config-file= --cache-dir=../../.mypy_cache consumer.py
	@$(BIN)/pyright --project tests/typing --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mkdocs build --strict  # with --quiet it would overlook warnings

twins: .venv/.dev  ## make the facades for threads out of those for asyncio
	@$(BIN)/python tools/twins.py

bench: .venv/.test  ## measure against bare sockets; ARGS go to the benchmark
	@$(BIN)/python -m bench $(ARGS)

docs: .venv/.docs  ## draw the figures, and build the documentation into site/
	@$(BIN)/python tools/figures.py
	@$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:  ## remove all that was made here
	@rm -rf .venv site build dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find redsync tests bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Seconds are saved in two places. pip is the one of the Python below, for one of .venv's own would be installed first
# (it is, where there is none below). And nothing is compiled before it is imported.
PIP = $$($(BIN)/python -c 'import pip' 2>/dev/null && echo $(BIN)/python || sed -n 's/^executable = //p' .venv/pyvenv.cfg) \
  -m pip --python $(BIN)/python install -qq --no-compile

.venv/pyvenv.cfg:
	@echo "preparing .venv"
	@$(PYTHON) -m venv --without-pip .venv
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null

# The demo runs from this folder: to build and install redsync itself would take longer than all it depends on.
DEMO_NEEDS := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  extras = project["optional-dependencies"]; print(*project["dependencies"], *extras["server"], *extras["cli"], sep="\n")

.venv/.demo: pyproject.toml | .venv/pyvenv.cfg
	@$(BIN)/python -c '$(DEMO_NEEDS)' > .venv/demo.txt
	@$(PIP) --requirement .venv/demo.txt
	@touch $@

.venv/.test .venv/.examples .venv/.docs .venv/.dev: pyproject.toml | .venv/pyvenv.cfg
	@echo "installing the extra $(@:.venv/.%=%)"
	@$(PIP) --editable '.[$(@:.venv/.%=%)]'
	@touch $@
