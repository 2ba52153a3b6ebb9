# Every target works on a machine that has only python3 (with venv) and make.
# `uv` is used when it is on the PATH, pip otherwise.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help install run test lint format test-real stress bench clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: setup.cfg setup.py pyproject.toml $(wildcard score_table/native/*.[ch])
	@echo "creating $(VENV) and installing (about a minute)"
ifdef UV
	test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV)
	uv pip install --quiet --python $(BIN)/python -e '.[dev]'
else
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
endif
	touch $@

install: $(VENV)/.installed  ## Create .venv and install loadboard with everything it can use

run: install  ## Start the demo: four simulated engines, monitor, proxy, load and a live view
	$(BIN)/loadboard demo

test: install  ## Run the tests
	$(BIN)/python -m pytest -q

lint: install  ## Check formatting, style and types (ruff, mypy --strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## Reformat the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-real: install  ## Test against two real vLLM servers (needs Python 3.11, 6 GB of disk, some minutes)
	$(BIN)/python -m tests.real

stress: install  ## Kill 10,000 workers and monitors at random moments and check every count (about 20 minutes)
	$(BIN)/python -m tests.stress.storm

bench: install  ## Measure what a pick costs (ratios)
	$(BIN)/python -m bench.selection

clean:  ## Remove virtual environments and caches
	rm -rf $(VENV) .venv-real .real build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
