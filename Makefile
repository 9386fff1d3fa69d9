# Every target sets up what it needs in $(VENV), once; `make help` lists them.

VENV   ?= .venv
# the first of these that is Python 3.11 or 3.12 makes the environment
PYTHON ?= python3 python3.11 python3.12 python
# any requirement pip understands: make TORCH="torch>=2.11", make TORCH=/path/to/torch.whl
TORCH  ?= $(shell grep '^torch==' constraints.txt)
# options for `python -m venv`: --system-site-packages lets the environment use a PyTorch that is already installed
VENV_OPTIONS ?=
# what is tested: this tree, or a built wheel
PACKAGE ?= -e .
WORKERS ?= 2
PYTEST_OPTIONS ?=
# what shows that a wheel is whole: its files and versions, the commands, the shipped models, presets, demo, page, export
WHEEL_TESTS := tests/test_package.py tests/test_demo.py tests/test_presets.py tests/experiments/test_train.py tests/model/test_golden.py \
  tests/report/test_page.py tests/storage/test_pretrained.py \
  $(addprefix tests/cli/test_,app.py demo.py evaluate.py export.py models.py report.py segment.py)
# the machine's own Python, with its own PyTorch for CUDA
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# --no-build-isolation: the pinned setuptools builds the package, not the newest one
INSTALL = $(PIP) install --quiet --no-build-isolation -c $(VENV)/constraints.txt
# two processes of one thread each: more threads than cores only wait for each other
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) $(PYTEST_OPTIONS)

.PHONY: help setup demo test test-wheel test-slow test-gpu gpu-tools triton lint lint-style lint-types lint-layers lint-docs format bench wheel locked lock \
  audit licences clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.dev ## set up everything a developer needs in .venv

demo: $(VENV)/.base ## group moving objects and write demo/index.html
	$(BIN)/nem demo --out demo

test: $(VENV)/.test ## the tests, without the long ones
	$(PYTEST) -m "not slow and not gpu and not browser"

test-wheel: $(VENV)/.test ## a part of them, about a minute: for an environment where a wheel is installed
	$(PYTEST) -m "not slow and not gpu and not browser" $(WHEEL_TESTS)

test-slow: $(VENV)/.test ## the long tests: crashes, fuzzing, browser, quick reproduction
	$(PYTEST) --durations=12 -m "slow or browser"

test-gpu: ## the tests for CUDA with this machine's own Python; writes results/gpu.json
	PYTHONPATH=src:build/gpu-tools:$(PYTHONPATH) $(GPU_PYTHON) -m tests.run_gpu --out results/gpu.json $(PYTEST_OPTIONS)

# --platform any: nothing compiled, because the CUDA machine may have another processor; so no hypothesis, which no GPU
# test needs
gpu-tools: $(VENV)/.base ## fetch pytest into build/gpu-tools, to carry to a CUDA machine that has neither it nor a network
	$(PIP) install --quiet --upgrade --target build/gpu-tools --no-deps --only-binary :all: --platform any \
	  --python-version $(GPU_PYTHON_VERSION) -c constraints.txt pytest pytest-xdist execnet pluggy iniconfig packaging pygments

# not in constraints.txt: a PyTorch for CUDA brings the version that it needs
triton: $(VENV)/.test ## fetch Triton, whose interpreter lets the tests run the GPU's kernels on a CPU (Linux)
	$(BIN)/python -c "import triton" 2> /dev/null || $(PIP) install --quiet --no-deps triton==3.9.0

lint: lint-style lint-types lint-layers lint-docs ## ruff, mypy, import-linter, the documentation with warnings as errors

lint-style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(VENV)/.dev
	$(BIN)/mypy

lint-layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

lint-docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

format: $(VENV)/.dev ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test ## time everything in benchmarks/; writes build/bench.json
	$(BIN)/python -m benchmarks

wheel: $(VENV)/.base ## build the wheel into dist/
	rm -rf build/lib build/bdist.* dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove everything that can be made again
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: each stamp file says what is already in the environment -------------------------------------------------

$(VENV)/.python:
	@for python in $(PYTHON); do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2> /dev/null; then \
	    echo "setting up $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV_OPTIONS) $(VENV) > /dev/null 2>&1 && touch $@ && exit; \
	    $$python -m venv --without-pip $(VENV_OPTIONS) $(VENV) && \
	    $$python -m pip --python $(VENV) install --quiet pip && touch $@; exit; \
	  fi; \
	done; \
	echo "Python 3.11 or 3.12 is needed: make PYTHON=/path/to/python" >&2; exit 1

# PyTorch first and alone: with anything else, pip might take another build of it, with gigabytes of CUDA
$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.python
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(INSTALL) pip setuptools
	$(INSTALL) "$(TORCH)"
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $(VENV)/constraints.txt
	$(INSTALL) $(PACKAGE)
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(INSTALL) $(PACKAGE)[all] --group test
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(INSTALL) --group lint
	touch $@

locked: | $(VENV)/.python ## for CI: install every dependency but PyTorch only if its hash is the known one
	$(PIP) install --quiet --no-deps "$(TORCH)"
	$(PIP) install --quiet --no-deps --require-hashes -r requirements.lock

lock: | $(VENV)/.python ## write requirements.lock anew from constraints.txt (minutes: it asks for the hash of every file)
	$(BIN)/python -m venv build/lock
	build/lock/bin/pip install --quiet pip-tools
	build/lock/bin/pip-compile --quiet --generate-hashes --no-header --no-annotate --no-emit-options --strip-extras \
	  --unsafe-package torch --output-file build/lock/hashes constraints.txt
	sed -n '/^#/p; /^#/!q' requirements.lock > build/lock/head
	sed '/^# WARNING/,$$d; /^$$/d' build/lock/hashes | cat build/lock/head - > requirements.lock

audit: | $(VENV)/.python ## look the pinned versions up among the known vulnerabilities, where these can be reached
	$(BIN)/python tools/audit.py

licences: $(VENV)/.dev ## write docs/licences.md anew from what is installed
	$(BIN)/python tools/licences.py
