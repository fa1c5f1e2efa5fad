# Both targets work on a bare machine with python3 >= 3.11, pip and make, and again when run twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q -q

.PHONY: paper test test-all lint bench clean

paper: $(VENV)/.core  ## the paper's tables and figure, into out/
	$(BIN)/mmdp paper $(ARGS)

test: lint  ## lint, types, tests and doctests
	$(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

test-all: lint  ## the slow tests too
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev  ## speed against peers, in one run
	$(BIN)/python benchmarks/core.py $(ARGS)

clean:
	rm -rf $(VENV) out build site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mmdp needs Python 3.11 or newer; say make PYTHON=python3.12, for example"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) (once; about a minute)"
	$(PIP) install -e . -c constraints.txt
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) with the test tools (once; about two minutes)"
	$(PIP) install -e ".[dev]" -c constraints.txt
	@touch $@ $(VENV)/.core
