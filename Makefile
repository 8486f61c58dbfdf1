# Two commands are all a new user needs: `make demo` and `make test`. (`make quick` while you write.)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-out
# The build without CUDA: small, and enough for the tests.
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# Tests that wait for processes, timers and browsers leave cores free, so more run at a time than there are cores.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(8, 3 * len(os.sched_getaffinity(0)) // 2 or 1))' 2>/dev/null || echo 2)

GATE := BIN=$(BIN) WORKERS=$(WORKERS) bash tests/gate.sh

.PHONY: integrations native demo docs packages test services quick stress install clean lint types

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Paceline needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(BIN)/python
	$(PIP) --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml $(BIN)/python
	$(PIP) --editable '.[dev]'
	@$(PIP) $(TORCH) 2>/dev/null || $(PIP) --extra-index-url $(TORCH_INDEX) $(TORCH) || \
	  echo "no $(TORCH): the tests of paceline profile will be skipped"
	touch $(VENV)/installed $@

install: $(VENV)/installed  ## make .venv with Paceline in it

demo: $(VENV)/installed  ## synthesise a job with a slow worker and find it
	@mkdir -p $(DEMO)
	$(BIN)/paceline synth --dp 8 --pp 4 --microbatches 16 --steps 10 --slow-worker 3,1,1.5 \
	  -o $(DEMO)/trace.parquet --force
	$(BIN)/paceline analyze $(DEMO)/trace.parquet --out $(DEMO) --force
	@echo "Open the report: $(CURDIR)/$(DEMO)/report.html"

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy --strict src

test: $(VENV)/installed-dev  ## all that needs nothing but Python
	@$(GATE) test

services: $(VENV)/installed-dev  ## the tests that need a browser or a PostgreSQL
	@$(GATE) services

TRAINERS := .venv-trainers
TRAINERS_PIP := $(TRAINERS)/bin/python -m pip install --disable-pip-version-check

integrations:  ## the trainers themselves on two gloo ranks, in an environment of their own (docs/integrations.md)
	$(PYTHON) -m venv $(TRAINERS)
	@$(TRAINERS_PIP) $(TORCH) 2>/dev/null || $(TRAINERS_PIP) --extra-index-url $(TORCH_INDEX) $(TORCH)
	echo '$(TORCH)' > $(TRAINERS)/constraints.txt
	$(TRAINERS_PIP) --editable '.[dev,test-integrations]'
	for package in 'torchtitan triton' mosaicml megatron-core; do \
	  $(TRAINERS_PIP) -c $(TRAINERS)/constraints.txt $$package || exit 1; done
	$(TRAINERS)/bin/python -m pip uninstall --yes torchvision  # mosaicml's is for CUDA: no trainer imports beside it
	$(TRAINERS_PIP) --editable '.[test-integrations]'  # behind mosaicml, which brings an older transformers
	$(TRAINERS)/bin/python -m pytest -q tests/test_integrations.py tests/test_integrations_steps.py

docs: $(VENV)/installed-dev  ## the site of docs/, in docs/_build/html
	@$(GATE) docs

packages:  ## sdist, the wheel of this platform (with the NCCL plugin) and one for any, checked; needs `pip install build twine`
	rm -rf dist
	$(PYTHON) -m build
	PACELINE_PURE=1 $(PYTHON) -m build --wheel
	$(PYTHON) -m twine check --strict dist/*

quick: $(VENV)/installed-dev  ## lint, and the tests of files that take seconds
	@$(GATE) quick

stress: $(VENV)/installed-dev  ## the tests beside 8 busy processes: none may depend on the machine's peace
	@$(GATE) stress

NATIVE := src/paceline/native

NATIVE_FLAGS := -std=c11 -O2 -Wall -Wextra -fvisibility=hidden -shared -fPIC -pthread -Wl,-z,nodelete

native:  ## the NCCL profiler plugin and the shim (docs/nccl.md); needs nothing but a C compiler
	$(CC) $(NATIVE_FLAGS) -o $(NATIVE)/libpaceline-nccl.so $(NATIVE)/*.c
	$(CC) $(NATIVE_FLAGS) -o $(NATIVE)/libpaceline-nccl-shim.so $(NATIVE)/shim/*.c \
	  $(filter-out $(NATIVE)/plugin.c,$(wildcard $(NATIVE)/*.c)) -ldl

clean:
	rm -f $(NATIVE)/*.so
	rm -rf docs/_build docs/_gallery
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache
