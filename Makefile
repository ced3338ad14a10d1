# Everything runs in .venv. PYTHON names the interpreter it is made with. `make demo` puts in what requirements.lock has, which is what
# users need; the other targets add the rest of requirements-dev.lock, which has the same versions and more.
PYTHON ?= python3
TORCH ?= 2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# On all cores, a file's tests together, since they share what is costly to set up. A worker takes about 1 GB.
OPTIONS := -q -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(OPTIONS)
# The first tier waits for a sixth of its time, so it has a worker more than there are cores.
WORKERS = $(shell $(PYTHON) -c "import os; print(min(8, 1 + (os.cpu_count() or 1)))")
FIRST = -n $(WORKERS) --hypothesis-profile first -m "not slow and not more"

.DEFAULT_GOAL := help
.PHONY: help demo test test-more test-both test-all quick durations chaos flower lint format bench-compare docs docs-lists package lock sbom audit clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-10s %s\n", $$1, $$2 }'

# Not compiled here: Python compiles what it imports, a tenth of it, and keeps that; else each process would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
.venv/.demo: requirements.lock pyproject.toml
	@test -x $(BIN)/python || { echo "Making .venv with $$($(PYTHON) --version)"; $(PYTHON) -m venv .venv; }
	@echo "Installing the $$(grep -c == requirements.lock) packages of requirements.lock (about a minute the first time)"
	@$(PIP) install --no-compile -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/.stamp: .venv/.demo requirements-dev.lock
	@echo "Installing the other packages of requirements-dev.lock (a few minutes the first time)"
	@$(PIP) install -r requirements-dev.lock
	@touch $@

demo: .venv/.demo ## run the quickstart experiment into runs/quickstart
	@$(BIN)/atoll run quickstart --overwrite --out runs/quickstart

test: .venv/.stamp ## run the tests of the first tier (four minutes on two cores)
	@$(PYTEST) $(FIRST)

test-more: .venv/.stamp ## run what make test leaves out, and its laws with more examples; not what is slow
	@$(PYTEST) -m "(more or hypothesis) and not slow"

test-both: .venv/.stamp ## run what make test and make test-more run, in one go
	@$(PYTEST) -m "not slow"

test-all: .venv/.stamp ## run all tests
	@$(PYTEST)

quick: .venv/.stamp ## run the first tier's tests of the rooms that changed, and of those above them
	@$(BIN)/python -m tests.quick $(OPTIONS) $(FIRST)

TIER ?= $(FIRST)
durations: .venv/.stamp ## print where the time goes, by file, of the first tier or of TIER='-m "not slow"'
	@$(PYTEST) -p tests.durations $(TIER)

chaos: .venv/.stamp ## disturb fleets of real processes, 200 times at least (about twenty minutes)
	@$(BIN)/python -m tests.chaos --faults 200 --minutes 20 --seed 0

flower: .venv/.stamp ## run a fleet on each version of Flower that pip offers, in an environment of its own: minutes a version
	@$(BIN)/python -m tests.flower_versions

lint: .venv/.stamp ## check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: .venv/.stamp ## format the code and apply the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

BASE ?= HEAD~1
bench-compare: .venv/.stamp ## race this checkout against the commit BASE (HEAD~1), executor by executor
	@$(BIN)/python benchmarks/compare.py --base $(BASE)

docs-lists: .venv/.stamp ## write the lists of settings, options and Python names into the pages
	@$(BIN)/python docs/lists.py

docs: .venv/.stamp ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

package: .venv/.stamp ## build the source archive and the wheel into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation > /dev/null
	@ls dist

# torch's builds (CPU, CUDA) share one version but not its suffix, nor the CUDA packages: the lock names neither, so that each
# machine takes the build its package index offers.
LOCK = CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile pyproject.toml --quiet --strip-extras --unsafe-package pip \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --annotation-style line

# Users get the versions that the tests have run with: the smaller lock is a part of the larger one.
lock: ## pin the newest packages in both locks (run it with Python 3.11, the oldest supported)
	@test -x $(BIN)/pip-compile || { $(PYTHON) -m venv .venv && $(PIP) install pip-tools; }
	@echo "Resolving the newest packages, with torch $(TORCH)"
	@$(LOCK) --extra dev --upgrade --upgrade-package torch==$(TORCH) --output-file requirements-dev.lock
	@sed -E -i.old -e 's/^(torch==[0-9.]+)\+[a-z0-9.]+/\1/' -e '/^(nvidia-|cuda-|triton==)/d' requirements-dev.lock
	@$(LOCK) --build-deps-for editable --upgrade --constraint requirements-dev.lock --output-file requirements.lock
	@sed -E -i.old -e 's/^(torch==[0-9.]+)\+[a-z0-9.]+/\1/' -e '/^(nvidia-|cuda-|triton==)/d' \
	  -e 's/-c requirements-dev.lock(, )?//' requirements.lock
	@rm requirements.lock.old requirements-dev.lock.old
	@echo "Wrote requirements.lock and requirements-dev.lock; run make test-all before you commit them"

# In an environment of their own: what reads the lock needs none of what is in it, and the other way round.
.venv-audit/.stamp:
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip --disable-pip-version-check -qq install cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

sbom: .venv-audit/.stamp ## list the locked packages in sbom.json (CycloneDX)
	@.venv-audit/bin/cyclonedx-py requirements requirements-dev.lock --output-format JSON --output-file sbom.json
	@echo "Wrote sbom.json"

audit: .venv-audit/.stamp ## look the locked packages up among known weaknesses, on PyPI
	@.venv-audit/bin/pip-audit --requirement requirements-dev.lock --no-deps --disable-pip --strict

clean: ## remove caches and builds (.venv, .data and runs stay)
	@rm -rf site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
