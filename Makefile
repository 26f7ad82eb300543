# `make demo` and `make test` set everything up on a fresh machine: a virtual environment in .venv, once, and again when
# pyproject.toml changes. PIP_ARGS reaches pip: for example, a smaller download without CUDA libraries by
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_ARGS ?=
PYTEST_ARGS ?=
# Tests side by side, for at most four processes: many wait for a process that they have started.
TOGETHER := -n logical --maxprocesses 4 --dist worksteal
BENCHMARKS := training_step engine environment store orchestration chunking demo retrieval_index

.DEFAULT_GOAL := help
.PHONY: help setup demo server servers test slow vllm lint format policy bench docs clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## the virtual environment with every extra that the tests need

$(STAMP): pyproject.toml hatch_build.py hrm_agent/environment/sandbox/_serve.c
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[train,dev]"
	touch $(STAMP)

demo: $(STAMP) ## train the small policy with sandboxed tools and show what became of it
	$(BIN)/hrm-agent demo

server: # before minutes are spent on the set-up
	@$(PYTHON) -m tests.postgres

servers: server
	@$(PYTHON) -m tests.wiki

test: servers lint ## lint, types, and the default tests
	$(BIN)/python -m pytest -m "not slow and not alone" $(TOGETHER) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "not slow and alone" $(PYTEST_ARGS)

slow: servers $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -m "slow and not alone" $(TOGETHER) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "slow and alone" $(PYTEST_ARGS)

vllm: ## the vLLM server that slow tests talk to, in an environment of its own (.venv-vllm, 2 GB)
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" tests/vllm/install

lint: $(STAMP) ## ruff, formatting, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP) ## rewrite the sources in the common format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

policy: $(STAMP) ## rebuild the two policies that are shipped, from nothing
	$(BIN)/python -m training.small_policy

bench: server $(STAMP) ## every benchmark, some minutes each; the numbers go to benchmarks/results
	mkdir -p benchmarks/results
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --json benchmarks/results/$$name.json; done

docs: $(STAMP) ## the generated page of the record's format
	$(BIN)/python -m hrm_agent.trajectory.json_schema docs/trajectory-format.md

clean: ## remove what was built, not what was recorded
	rm -rf $(VENV) .venv-vllm build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
