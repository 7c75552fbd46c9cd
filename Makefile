# Needs only Python 3.11+ and make. Everything lands in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test docs lint format clean fuzz kill-test release-check

demo: $(VENV)/.installed
	$(BIN)/ananet demo -o demo.png

test: $(VENV)/.installed
	$(BIN)/python -m pytest

# The site, in site/. A link, an anchor or a name of the reference that leads nowhere fails.
docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Ten minutes of new cases: make fuzz SECONDS=3600 SEED=1000 for more, and for others.
SECONDS ?= 600
SEED ?= 0
fuzz: $(VENV)/.installed
	OPENCV_LOG_LEVEL=SILENT $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

# Commands killed at random moments, each so many times.
TIMES ?= 30
kill-test: $(VENV)/.installed
	$(BIN)/python tools/kill_test.py --times $(TIMES)

# Wheel and sdist, each installed in an environment of its own.
release-check: $(VENV)/.installed
	$(BIN)/python tools/release_check.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ananet needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Not part of the installation above, which a newcomer waits for.
$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
