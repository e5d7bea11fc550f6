# One virtual environment serves every target. It is brought up to date whenever pyproject.toml changes.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
MINUTES ?= 5
SEEDS   ?= 2000
KIND    ?= lock
WORKERS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo test soak simulate check bench docs clean

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / { printf "  make %-8s  %s\n", $$1, $$2 }' Makefile

demo: $(READY)  ## watch locks survive failing nodes
	@$(BIN)/redsync demo $(ARGS)

test: $(READY)  ## run the tests; ARGS="-k lock -x" goes to pytest
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

soak: $(READY)  ## run the test of random faults for MINUTES=5; NETWORK=1: behind a router (root, Linux)
	@REDSYNC_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(if $(NETWORK),REDSYNC_SOAK_NETWORK=1) \
	  $(BIN)/python -m pytest -s tests/soak/test_$(if $(NETWORK),outages,soak).py $(ARGS)

simulate: $(READY)  ## run the simulator with SEEDS=2000 seeds of KIND=lock, or any other (see docs/testing.md)
	@$(BIN)/python -m redsync.testing.simulator --seeds $(SEEDS) --kind $(KIND) $(ARGS)

check: $(READY)  ## style, types, architecture, documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@cd tests/typing && ../../$(BIN)/mypy --strict --config-file= --cache-dir=../../.mypy_cache consumer.py
	@$(BIN)/pyright --project tests/typing --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mkdocs build --strict  # with --quiet it would overlook warnings

bench: $(READY)  ## measure against bare sockets; ARGS go to the benchmark
	@$(BIN)/python -m bench $(ARGS)

docs: $(READY)  ## build the documentation into site/
	@$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:  ## remove all that was made here
	@rm -rf .venv site build dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find redsync tests bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml
	@echo "preparing .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@touch $@
