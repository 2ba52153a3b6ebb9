# Every target works on a machine that has only python3 (with venv) and make.
# `uv` is used when it is on the PATH, pip otherwise.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help install run test lint format test-real stress stress-torn sanitize bench bench-routing bench-gateway wheels test-arm64 test-free-threaded clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

stress: install  ## Storms and hunts at full size, every count checked (two hours; ARGS="--minutes 20 --seed 1" for less)
	$(BIN)/python -m tests.stress $(ARGS)

stress-torn: install  ## Hunt for torn words and mixed records (half an hour on two idle cores; ARGS="--seed 1")
	$(BIN)/python -m tests.stress.torn $(ARGS)
	$(BIN)/python -m tests.stress.mixed $(ARGS)

sanitize: install  ## Test the native core under AddressSanitizer and UndefinedBehaviorSanitizer (needs gcc)
	$(BIN)/python -m tests.sanitize.run $(ARGS)

bench: install  ## Measure what a pick costs (CHECK=1: against the goals; ARGS=--quick: within 40 s)
	$(BIN)/python -m bench.selection $(if $(filter-out 0,$(CHECK)),--check) $(ARGS)

bench-routing: install  ## Measure how good the choices are, in virtual time (45 minutes, resumable; CHECK=1; ARGS=--quick: 7 minutes)
	$(BIN)/python -m bench.routing $(if $(filter-out 0,$(CHECK)),--check) $(ARGS)

bench-gateway: install  ## Measure the demo proxy beside nginx and other ways to pick, in real time (two hours; CHECK=1; ARGS=--quick: 10 minutes)
	$(BIN)/python -m bench.gateway $(if $(filter-out 0,$(CHECK)),--check) $(ARGS)

wheels: install  ## Build wheel and source distribution into dist/, try them on every CPython here (PYTHONS="3.10 3.13")
	$(BIN)/python -m tests.platform.wheels

test-arm64: install  ## Cross-compile for aarch64 and run the unit tests under qemu-user (Debian; ARGS for pytest)
	$(BIN)/python -m tests.platform.arm64 $(ARGS)

test-free-threaded: install  ## Test on CPython 3.13 without the GIL (FREE_THREADED_PYTHON=python3.13t, else built)
	$(BIN)/python -m tests.platform.free_threaded $(ARGS)

clean:  ## Remove virtual environments and caches
	rm -rf $(VENV) .venv-real .real build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
