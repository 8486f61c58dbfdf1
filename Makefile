# Two commands are all a new user needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-out

.PHONY: demo test install clean lint types

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Paceline needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: $(VENV)/installed  ## make .venv with Paceline and what its tests need

demo: $(VENV)/installed  ## synthesise a job with a slow worker and find it
	@mkdir -p $(DEMO)
	$(BIN)/paceline synth --dp 8 --pp 4 --microbatches 16 --steps 10 --slow-worker 3,1,1.5 \
	  -o $(DEMO)/trace.parquet --force
	$(BIN)/paceline analyze $(DEMO)/trace.parquet --out $(DEMO) --force

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy --strict src

test: lint types  ## all that CI runs
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache
