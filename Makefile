# Two commands do everything on a fresh machine with Python 3.11 or later: `make run` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv run test test-long check bench clean

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

# The same histories as in `test`, fifty times as many, and a power loss at every moment.
test-long: venv
	LASH_LONG=1 $(BIN)/python -m pytest -n 2 tests/property tests/power --timeout 3600

# Ratios to the bare drivers; fails on a missed bound.
bench: venv
	$(BIN)/python -m bench

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
