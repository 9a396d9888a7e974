# mmaccel: `make demo` runs the main job, `make test` runs the checks. Both set up their own environment first.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON      ?= python3
VENV        ?= .venv
OLDEST      ?= .venv-oldest
OLDEST_TRANSFORMERS ?= 5.17.0
WORKERS     ?= 2
# one thread a worker: the tiny models of the tests are slower, not faster, with more
TEST_ENV    := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
SOURCES     := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo smoke test lint slow test-oldest clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /|/' | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.runtime  ## set up in .venv, then run the main job: FastV against its controls on the embedded model
	$(VENV)/bin/python -m mmaccel.run +experiment=fastv_sweep

smoke: $(VENV)/.runtime  ## the same road in seconds
	$(VENV)/bin/python -m mmaccel.run +experiment=smoke

test: lint  ## set up, then ruff, mypy and the tests
	$(TEST_ENV) $(VENV)/bin/python -m pytest -n $(WORKERS)

lint: $(VENV)/.dev  ## ruff and mypy
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy

slow: $(VENV)/.dev  ## what runs on demand only: full cross products, kill tests, studies
	$(TEST_ENV) $(VENV)/bin/python -m pytest -m slow

test-oldest: $(OLDEST)/.dev  ## the tests on the oldest transformers that is supported
	$(TEST_ENV) $(OLDEST)/bin/python -m pytest -n $(WORKERS)

clean:  ## remove the environments, caches and build folders (never outputs/)
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mmaccel tests -name __pycache__ -prune -exec rm -rf {} +

# The stamp files make set-up a no-op until a version changes. The pinned torch goes first and alone, so that a CPU
# build from the configured index or wheel folder is taken and nothing later pulls another one in.
$(VENV)/.runtime: $(SOURCES)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, this is {sys.version}"'
	$(VENV)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(OLDEST)/.dev: $(SOURCES)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	sed -E 's/^transformers==.*/transformers==$(OLDEST_TRANSFORMERS)/; /^(tokenizers|huggingface_hub)==/d' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(OLDEST)/bin/python -m pip install --quiet -c $(OLDEST)/constraints.txt -e '.[dev]'
	touch $@
