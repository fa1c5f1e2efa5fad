# Both targets work on a bare machine with python3 >= 3.11, pip and make, and again when run twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q -q
# every kernel compiled and checked once, so that no first solve waits for it
COMPILE := $(BIN)/python -c 'from mmdp.core import kernels, testing; testing.check_backend(kernels.get_backend("numba"), seeds=range(6))'

# some machines set it, and then every process of the tests compiles the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: paper test test-all coverage lint browser bench docs clean

paper: $(VENV)/.core  ## the paper's tables and figure, into out/
	$(BIN)/mmdp paper $(ARGS)

test: lint  ## lint, types, tests and doctests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

test-all: lint  ## the slow tests too
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

coverage: $(VENV)/.dev  ## the lines of src that no test runs
	$(PIP) install coverage
	$(BIN)/python -m coverage run --source src/mmdp -m pytest -m "not slow" tests $(ARGS)
	$(BIN)/python -m coverage report --skip-covered --show-missing

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

browser:  ## installs Chromium (by apt, as root) for the tests that open pages, else skipped
	$(PYTHON) -m tests.chromium

bench: $(VENV)/.dev  ## speed against peers; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.suite $(ARGS)

docs: $(VENV)/.docs  ## the site, into site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) out build site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mmdp needs Python 3.11 or newer; say make PYTHON=python3.12, for example"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) (once; about a minute)"
	$(PIP) install -e . -c constraints.txt
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) with the test tools (once; about two minutes)"
	$(PIP) install -e ".[dev]" -c constraints.txt
	@$(COMPILE)
	@# quantecon compiles when it is first imported; two processes that do so at once can crash
	@$(BIN)/python -c 'import quantecon.markov'
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) with mkdocs (once; about half a minute)"
	$(PIP) install -e ".[docs]" -c constraints.txt
	@touch $@ $(VENV)/.core
