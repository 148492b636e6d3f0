# Needs Python >= 3.11, make and a package registry; everything else is installed into .venv by the first target called.
#   make demo PYTHON=python3.12      another interpreter
#   make setup PIP_ARGS="..."        further arguments for pip, such as the index of a CUDA or CPU build of torch

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint type bench docs clean

help:
	@echo "make setup     create $(VENV) with the pinned packages and geoseg itself"
	@echo "make demo      real drone imagery to a map of buildings: data, training, map, scores (minutes)"
	@echo "make test      the test suite; make test-all adds the slow tests"
	@echo "make lint      ruff; make type: mypy"
	@echo "make bench     time and memory of sampling and classification on a synthetic scene"
	@echo "make docs      write docs/config.md again from the schema"
	@echo "make clean     remove what make wrote, but not $(VENV)"

setup: $(READY)

# The stamp is written last: an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("geoseg needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] \
		+ ": call make with PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/python tools/demo_data.py
	$(BIN)/python tools/demo.py

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check geoseg tests tools
	$(BIN)/ruff format --check geoseg tests tools

type: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python tools/bench.py

docs: $(READY)
	$(BIN)/python tools/make_config_docs.py

clean:
	rm -rf demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find geoseg tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
