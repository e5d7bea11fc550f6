# All targets share one virtual environment. Each target installs only what it lacks, in the versions of constraints.txt,
# and records that in a stamp (.venv/.demo, .venv/.test ...). A change of constraints.txt or pyproject.toml outdates the
# stamps.
PYTHON   ?= python3
VENV     ?= .venv
VERSIONS ?= constraints.txt
BIN       = $(VENV)/bin
MARKS    ?= not sweep
MINUTES  ?= 5
SEEDS    ?= 2000
KIND     ?= lock
WORKERS  ?= 4
SECONDS  ?= 10

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# Keep compiled modules in any case: tests and demo start hundreds of interpreters.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-all test-latest test-oldest lock soak simulate check twins bench peers interop docs clean

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-11s  %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo  ## watch locks survive failing nodes
	@PYTHONPATH="$(CURDIR)" $(BIN)/python -m redsync.cli demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(VENV)/.test  ## run the tests without sweeps; ARGS="-k lock -x" goes to pytest
	@$(PYTEST) -m "$(MARKS)" $(ARGS)

test-all: $(VENV)/.test  ## run all tests; ARGS="-m sweep" runs only those that `make test` omits
	@$(PYTEST) $(ARGS)

test-latest:  ## run the tests, also those of frameworks, with the newest versions of all that redsync uses
	@rm -rf .venv-latest
	@$(MAKE) --no-print-directory VENV=.venv-latest VERSIONS= MARKS="not sweep or framework" test

test-oldest: build/oldest.txt  ## run the same tests with the oldest versions that pyproject.toml admits
	@$(MAKE) --no-print-directory VENV=.venv-oldest VERSIONS=$< MARKS="not sweep or framework" test

soak: $(VENV)/.test  ## test with random faults for MINUTES=5
	@REDSYNC_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) $(BIN)/python -m pytest -s tests/soak/test_soak.py $(ARGS)

simulate: $(VENV)/.test  ## run our own workload in SEEDS=2000 simulations of KIND=lock or another kind (see docs/internals.md)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --kind $(KIND) $(ARGS)

check: $(VENV)/.dev  ## check style, types, architecture and documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/twins.py --check
	@$(BIN)/python tools/figures.py --check
	@$(BIN)/python tools/dashboard.py --check
	@$(BIN)/python tools/dashboard_picture.py --check
	@$(BIN)/python tools/llms.py --check
	@$(BIN)/python tools/words.py
	@$(BIN)/python tools/budgets.py
	@$(BIN)/mypy
	@$(BIN)/mypy -p tests.chaos -p tests.simulation --implicit-reexport --exclude '/(test_|conftest)'
	@$(BIN)/mypy --strict tools
	@$(BIN)/python tools/twins.py --consumer
	@cd tests/typing && ../../$(BIN)/mypy --strict --config-file= --cache-dir=../../.mypy_cache . ../../build/typing
	@$(BIN)/pyright --project tests/typing --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mkdocs build --strict  # --quiet would hide warnings

lock: .venv-lock/.uv  ## renew constraints.txt: the newest versions of all that the targets install
	@printf 'editables\nsetuptools\n' | $(COMPILE) --upgrade --extra dev --output-file constraints.txt -  # see below

twins: $(VENV)/.dev  ## generate the facades for threads from those for asyncio
	@$(BIN)/python tools/twins.py

bench: $(VENV)/.test  ## benchmark against bare sockets; ARGS go to the benchmark
	@$(BIN)/python -m bench --plots build/plots $(ARGS)

peers: $(VENV)/.test  ## install other libraries for `make bench`, each in its own directory
	@$(BIN)/python -m bench.peer_locks | while read -r line; do name=$${line% *}; \
	  echo "installing $${line##* }"; $(PIP) --no-warn-conflicts --target .venv/peers/$$name "$${line##* }" || echo "left out: $$name"; done
	@if command -v npm >/dev/null; then echo "installing node-redlock"; npm install --silent --no-audit --no-fund \
	  --prefix .venv/peers/node-redlock redlock@4.2.0 ioredis@5; else echo "left out: node-redlock (no npm)"; fi

interop: $(VENV)/.test  ## let redsync and other libraries fight for one name, SECONDS=10 a pair; LIBRARIES="rslock" chooses
	@$(BIN)/python -m tests.interop --seconds $(SECONDS) $(LIBRARIES)

docs: $(VENV)/.docs $(if $(DEMO),$(VENV)/.demo)  ## generate figures, dashboard, llms.txt and site/; DEMO=1 draws a new run
	@$(if $(DEMO),$(BIN)/python tools/demo_picture.py --seconds 6 docs/figures/demo.svg)
	@$(BIN)/python tools/figures.py
	@$(BIN)/python tools/dashboard.py
	@$(BIN)/python tools/dashboard_picture.py
	@$(BIN)/python tools/llms.py
	@$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:  ## remove all generated files
	@rm -rf .venv .venv-* site build dist htmlcov .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find redsync tests bench examples tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Two things save seconds: pip comes from the base Python if it has one, because the environment's own would have to be
# installed first; and no module is compiled before its import.
PIP = "$$($(BIN)/python -c 'import pip' 2>/dev/null && echo $(BIN)/python || sed -n 's/^executable = //p' $(VENV)/pyvenv.cfg)" \
  -m pip --python $(BIN)/python install -qq --no-compile
PIP_FIXED = PIP_CONSTRAINT=$(VERSIONS) PIP_BUILD_CONSTRAINT=$(VERSIONS) $(PIP)  # old pips apply the first to builds, too

%/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "redsync needs Python 3.11 or later, but $(PYTHON) is " \
	  + sys.version.split()[0] + ": name another one, as in make demo PYTHON=python3.12")'
	@echo "preparing $*"
	@$(PYTHON) -m venv --without-pip $*
	@"$$(sed -n 's/^executable = //p' $@)" -m pip --version >/dev/null 2>&1 || $*/bin/python -m ensurepip >/dev/null

# The demo runs from this directory: building and installing redsync takes longer than installing its dependencies.
DEMO_NEEDS := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  extras = project["optional-dependencies"]; print(*project["dependencies"], *extras["server"], *extras["cli"], sep="\n")

$(VENV)/.demo: pyproject.toml $(VERSIONS) | $(VENV)/pyvenv.cfg
	@$(BIN)/python -c '$(DEMO_NEEDS)' > $(VENV)/demo.txt
	@$(PIP_FIXED) --requirement $(VENV)/demo.txt
	@touch $@

$(VENV)/.test $(VENV)/.docs $(VENV)/.dev: pyproject.toml $(VERSIONS) | $(VENV)/pyvenv.cfg
	@echo "installing the extra $(@:$(VENV)/.%=%)"
	@$(PIP_FIXED) --editable '.[$(@:$(VENV)/.%=%)]'
	@touch $@

# Two things are needed only to build: editables, for the editable install of redsync, and setuptools, for redlock-py.
COMPILE = .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --annotation-style line \
  --custom-compile-command "make lock" pyproject.toml

build/oldest.txt: pyproject.toml | .venv-lock/.uv
	@mkdir -p build
	@$(COMPILE) --upgrade --resolution lowest-direct --extra test --output-file $@

.venv-lock/.uv: override VENV := .venv-lock
.venv-lock/.uv: | .venv-lock/pyvenv.cfg
	@$(PIP) uv
	@touch $@
