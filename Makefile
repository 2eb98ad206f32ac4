# Two commands do everything on a fresh machine with Python 3.11 or later: `make run` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv run test test-long soak check bench clean

venv: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $@

run: venv
	$(BIN)/python examples/survive_a_crash.py

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/mypy bench
	$(BIN)/lint-imports

test: venv
	$(BIN)/python -m pytest -n 2 -p tests.areas

# The same histories as in `test`, fifty times as many, many more crashes, and a power loss at every moment.
test-long: venv
	LASH_LONG=1 $(BIN)/python -m pytest -n 2 tests/property tests/crash tests/power --timeout 3600

# Workers that are killed, stopped and lied to, at random: `make soak MINUTES=60`, or one round again: `make soak SEED=…`.
MINUTES ?= 10
soak: venv
	$(BIN)/python -m tests.crash.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind $(KIND))

# Ratios to the bare drivers; fails on a missed bound.
bench: venv
	$(BIN)/python -m bench

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
