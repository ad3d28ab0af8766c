PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# threads of libraries below us: the engines decide on parallelism themselves
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1

.PHONY: run test test-slow lint bench docs dist clean
.DELETE_ON_ERROR:

run: $(VENV)/.ready-run
	$(BIN)/fedsparq compare specs/quickstart.toml --out runs/quickstart

test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

test-slow: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.ready-dev
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

dist: $(VENV)/.ready-dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[lab]'
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[lab,flower,dev]'
	@touch $@ $(VENV)/.ready-run

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
