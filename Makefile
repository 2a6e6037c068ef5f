# One command each; `make` alone lists them. Everything is installed into $(VENV), nothing elsewhere.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
SPEC := pyproject.toml constraints.txt
# One worker per core and one thread per worker: threads of several workers would wait for each other.
PYTEST := GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-spark test-all soak lint security lock sbom format benchmark docs mutants hooks clean

help: ## list these commands
	@echo "recsys: purchase histories to next-item recommendations. Start with 'make demo'."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "PYTHON=python3.12 picks another interpreter; ARGS='-k shop' goes to pytest."

demo: $(VENV)/.installed ## build the simulated shop, train on it, compare, recommend, explain (about five minutes)
	$(BIN)/recsys demo

test: $(VENV)/.installed-dev ## run the fast tests and the docstring examples (three to five minutes on two cores)
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-dev ## run the slow tests and the notebooks
	$(PYTEST) -m slow $(ARGS)

test-all: test test-slow ## run both

test-spark: $(VENV)/.installed-spark ## run the tests on a local Spark; without Java they skip
	$(BIN)/python -m pytest -m spark $(ARGS)

soak: $(VENV)/.installed-dev ## run all attacks of tests/faults with long budgets (hours); root, for the power cuts
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults -m "soak or not soak" $(ARGS)

lint: security ## check style, types, layers, spelling and security; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/typos

# B608 sees SQL that is put together: names and texts are quoted, conditions pass one gate (recsys/data/where.py).
security: $(VENV)/.installed-dev ## check the code (bandit) and the installed packages (pip-audit, where its data can be had)
	$(BIN)/bandit --quiet --recursive --severity-level medium --skip B608 recsys
	$(BIN)/python .ci/audit.py

lock: $(VENV)/.installed-dev ## write .ci/requirements.txt anew: the hashes of the packages in constraints.txt
	.ci/lock $(BIN)

sbom: $(VENV)/.installed-dev ## write build/sbom.json, the installed packages and their licences (CycloneDX)
	mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o build/sbom.json $(BIN)/python

format: $(VENV)/.installed-dev ## mend what ruff can mend, then format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

benchmark: $(VENV)/.installed-dev ## run the benchmarks (long); write the figures into docs/lab-log.md
	$(BIN)/python -m pytest -m benchmark tests $(ARGS)

mutants: $(VENV)/.installed-dev ## put small faults into copies of the code and list those that no test sees (some minutes)
	$(BIN)/python tests/mutants.py $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

hooks: $(VENV)/.installed-dev ## have git run the checks of .pre-commit-config.yaml before each commit
	$(BIN)/pre-commit install

clean: ## remove the virtual environment and the caches; data and runs stay
	rm -rf $(VENV) build dist docs/_build docs/notebooks .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamps remember an installation until pyproject.toml or constraints.txt changes.
$(VENV)/.installed: $(SPEC) | $(BIN)/python
	@echo "Installing recsys into $(VENV); the first time takes some minutes."
	$(INSTALL) '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(SPEC) | $(BIN)/python
	@echo "Installing recsys with its tests and tools into $(VENV); the first time takes some minutes."
	$(INSTALL) '.[test,dev]'
	@touch $@

$(VENV)/.installed-spark: $(SPEC) | $(BIN)/python
	@echo "Installing recsys with its tests and Spark into $(VENV); the first time takes some minutes."
	$(INSTALL) '.[test,dev,spark]'
	@touch $@

$(VENV)/.installed-docs: $(SPEC) | $(BIN)/python
	@echo "Installing recsys with its documentation tools into $(VENV); the first time takes some minutes."
	$(INSTALL) '.[docs,train,tune]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("recsys needs Python 3.11 or newer, and $(PYTHON) is older: try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
