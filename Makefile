# make demo and make test work in a fresh clone: each sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find csrc -type f)
FORMATTED := python tests tools bench

.PHONY: help setup demo test bench lint format stubs sanitize clean

help:
	@echo "make setup     .venv with mixbit, built from this folder"
	@echo "make demo      the main job on the shipped tiny model"
	@echo "make test      all tests        make bench     benchmarks against stock MLX"
	@echo "make lint      all checks       make format    reformat Python and C++"
	@echo "make stubs     write the native module's .pyi again"
	@echo "make sanitize  kernel tests under the address and undefined-behaviour sanitizers"

setup: $(VENV)/.installed

$(VENV)/.created:
	@tools/prepare_machine.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Editable: changes in python/ count at once, changes in csrc/ when a target runs next.
$(VENV)/.installed: $(VENV)/.created $(NATIVE)
	$(BIN)/pip install --disable-pip-version-check -q -e . $(PIP_FLAGS)
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install --disable-pip-version-check -q -e '.[test]' $(PIP_FLAGS)
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(BIN)/pip install --disable-pip-version-check -q -e '.[lint]' $(PIP_FLAGS)
	@touch $@

demo: setup
	$(BIN)/mixbit demo

# Tests run side by side, so each gets one thread; those that need more say so.
test: $(VENV)/.test
	MIXBIT_NUM_THREADS=1 $(BIN)/pytest -q -n auto $(PYTEST_FLAGS)

bench: $(VENV)/.test
	$(BIN)/pytest bench -q -o addopts= -p no:xdist $(PYTEST_FLAGS)
	$(BIN)/mixbit bench

lint: $(VENV)/.lint
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	find csrc -type f | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.lint
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)
	find csrc -type f | xargs $(BIN)/clang-format -i

stubs: setup
	$(BIN)/pip install --disable-pip-version-check -q nanobind==3.1.0
	$(BIN)/python tools/write_stubs.py

sanitize: $(VENV)/.test
	tools/sanitize.sh $(BIN)

clean:
	rm -rf $(VENV) build dist
