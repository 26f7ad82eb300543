# `make demo` and `make test` set everything up on a fresh machine: what is missing of the system (tests/install), and a
# virtual environment in .venv, once, and again when pyproject.toml changes. PIP_ARGS reaches pip: for example, a smaller
# download without CUDA libraries by
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_ARGS ?=
PYTEST_ARGS ?=
# Bytecode is kept, whatever the machine is set to: every process of the tests reads the same thousands of modules.
unexport PYTHONDONTWRITEBYTECODE
# Three processes of tests for two cores, for many wait for a process that they have started; at most eight.
# `nproc` would count OMP_NUM_THREADS for cores.
CORES := $(shell env -u OMP_NUM_THREADS nproc)
WORKERS ?= $(shell n=$$(( ($(CORES) * 3 + 1) / 2 )); echo $$(( n < 8 ? n : 8 )))
BENCHMARKS := training_step algorithms blame why failures film reward_diff engine engine_share rollout_profile environment store orchestration processes ray_workers real_size chunking demo retrieval_index retrieval_quality retrieval_shown arc_policy rescoring anyones_agents distillation learning roc_study role_swaps gate prompts simulate traces_in viewer on_gpu others_environments gpu_training

.DEFAULT_GOAL := help
.PHONY: help python setup demo system check quick test-changed style types test slow model vllm lint format policy bench docs site clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(STAMP) ## the virtual environment with every extra that the tests need

# A target of its own: make looks for the interpreter before it begins with a target's lines.
python:
	@PYTHON=$(PYTHON) tests/install python

$(STAMP): pyproject.toml tests/constraints.txt hatch_build.py hrm_agent/environment/sandbox/_serve.c | python
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# Without bytecode: the first start compiles what it imports, a seventh of all.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) \
	  -c tests/constraints.txt -e ".[train,dev]"
# The interpreters of the sandbox read bytecode and write none.
	$(BIN)/python -m compileall -q hrm_agent/environment/sandbox
	touch $(STAMP)

demo: $(STAMP) ## train the small policy with sandboxed tools; before and after compared
	$(BIN)/hrm-agent demo

# After `python`: both use apt, which runs once at a time.
system: python # before minutes are spent on the set-up
	@PYTHON=$(PYTHON) tests/install tests
# A compiler that came after the set-up: the sandbox's compiled body is still to be built.
	@test ! -e $(STAMP) || ! command -v cc >/dev/null || compgen -G "hrm_agent/environment/sandbox/_serve*.so" >/dev/null || \
	  touch hatch_build.py

check: $(STAMP) ## lint, types, the tests that are quick and want no server, and a report on the structure: two minutes
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint quick
	$(BIN)/python -m tests.support.structure

# These wait for nobody: one process a core, since each takes ten seconds to begin.
quick: $(STAMP)
	$(BIN)/python -m pytest -m "not (slow or server or whole)" -n logical --dist worksteal $(PYTEST_ARGS)

test-changed: $(STAMP) ## the quick tests of what differs from HEAD (SINCE=COMMIT for another commit)
	paths=$$($(BIN)/python -m tests.support.changed $(SINCE)); test -z "$$paths" || \
	  $(BIN)/python -m pytest -m "not (slow or server or whole)" -n logical --dist worksteal $(PYTEST_ARGS) $$paths

# Pyright has one core only: the tests run beside it, and what it found stands below them.
test: system style ## lint, types, and the default tests; installs the servers that they start
	types=$$(mktemp); trap 'rm -f "$$types"' EXIT; \
	  $(BIN)/pyright --pythonpath $(BIN)/python >"$$types" 2>&1 & checked=$$!; tested=0; \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) || tested=$$?; \
	  wait $$checked && cat "$$types" || { cat "$$types"; exit 1; }; exit $$tested

# Only files with such a test: to read the others takes as long as ten of them.
slow: system $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) $$(grep -rlw --include='test_*.py' mark.slow tests)

model: $(STAMP) ## the real model that slow tests ask, in the user's cache (SmolLM2-135M-Instruct, 0.5 GB)
	$(BIN)/python -m tests.support.real_model

vllm: python ## the vLLM server that slow tests talk to, in an environment of its own (.venv-vllm, 2 GB)
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" tests/support/vllm/install

lint: style types ## ruff, formatting, pyright

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP) ## rewrite the sources in the common format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

policy: $(STAMP) ## rebuild the policies that are shipped, from nothing
	$(BIN)/python -m benchmarks.small_policy.build

bench: system $(STAMP) ## every benchmark, some minutes each; the numbers go to benchmarks/results
	mkdir -p benchmarks/results
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --json benchmarks/results/$$name.json; done

docs: $(STAMP) ## the generated page of the record's format
	$(BIN)/python -m hrm_agent.trajectory.json_schema docs/trajectory-format.md

site: $(STAMP) ## the documentation as a site in build/site, which opens from a file
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean: ## remove what was built, not what was recorded
	rm -rf $(VENV) .venv-vllm build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
