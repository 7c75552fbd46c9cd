# Needs only Python 3.11+ and make. Everything lands in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-native test-lite test-js test-page page docs tables plot lint format clean fuzz kill-test release-check

# Bytecode is written for what the demo imports only.
demo: $(VENV)/.installed
	PYTHONDONTWRITEBYTECODE= $(BIN)/ananet demo -o demo.png

# One process per core, each with a run of neighbouring tests, which share fixtures.
PARALLEL := --numprocesses=auto --dist=worksteal
# For one file, or a debugger: .venv/bin/python -m pytest tests/io
# PYTEST=--cov also shows how much of the package the tests run, and fails below the floor in pyproject.toml.
test: $(VENV)/.dev-installed
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST)

# What packages without PyTorch are built from and tested with; made again when weights change.
NETWORKS := packages/js/networks/ananet-small.onnx
PACKAGES := build/packages/.written
$(NETWORKS) $(PACKAGES): tools/export_packages.py $(wildcard src/ananet/weights/*.safetensors) | $(VENV)/.dev-installed
$(NETWORKS):
	$(BIN)/python tools/export_packages.py onnx
$(PACKAGES): $(NETWORKS)
	$(BIN)/python tools/export_packages.py answers
	touch $@

# The C++ header, against what Python answers.
test-native: $(PACKAGES)
	$(BIN)/python -m pytest -rs native/tests

# ananet-lite, numpy and ONNX Runtime alone.
test-lite: $(PACKAGES)
	$(BIN)/python -m pytest -rs packages/lite/tests

# The npm package, in Node and in a headless Chromium.
test-js: $(PACKAGES)
	$(BIN)/python -m pytest -rs packages/js/test

# The page that needs no server, in a headless Chromium.
test-page: $(NETWORKS)
	$(BIN)/python -m pytest -rs packages/page/test

# The same page, in build/page, for the site. Without npm it is left out.
page: $(NETWORKS)
	$(BIN)/python tools/build_page.py

# The site, in site/. A link, an anchor or a name of the reference that leads nowhere fails.
docs: $(VENV)/.docs-installed page
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The tables of README, docs/evaluation.md and the model cards, from the pairs in benchmarks/pairs/validation.
# CHECK=1 writes nothing and fails if one differs.
tables: $(VENV)/.installed
	$(BIN)/python tools/write_tables.py $(if $(CHECK),--check)

# Accuracy against time, from the same pairs: docs/images/accuracy-by-time.png.
plot: $(VENV)/.dev-installed
	$(BIN)/python tools/draw_accuracy.py

# Ten minutes of new cases: make fuzz SECONDS=3600 SEED=1000 for more, and for others.
SECONDS ?= 600
SEED ?= 0
fuzz: $(VENV)/.dev-installed
	OPENCV_LOG_LEVEL=SILENT $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

# Commands killed at random moments, each so many times.
TIMES ?= 30
kill-test: $(VENV)/.dev-installed
	$(BIN)/python tools/kill_test.py --times $(TIMES)

# Wheel and sdist, and the packages without PyTorch, each installed in an environment of its own.
release-check: $(PACKAGES)
	$(BIN)/python tools/release_check.py

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

# What `make demo` needs, and no more. Not compiled: bytecode of modules that nobody imports takes 190 MB and some seconds.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ananet needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) --no-compile --editable ".[demo]"
	touch $@

# Compiled, since tests start many processes.
$(VENV)/.dev-installed: $(VENV)/.installed
	$(INSTALL) --no-compile --editable ".[dev]"
	-$(BIN)/python -m compileall -q -j 0 $(VENV)/lib
	touch $@

$(VENV)/.docs-installed: $(VENV)/.dev-installed
	$(INSTALL) --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
