# make demo and make test work in a fresh clone: each sets up what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find csrc metal -type f)
FORMATTED := python tests tools bench
CLANG_FORMATTED := csrc metal tests/metal tests/native -name '*.cpp' -o -name '*.h' -o -name '*.metal'

.PHONY: help setup demo test bench lint format stubs sanitize wheel-macos clean

help:
	@echo "make setup     .venv with mixbit, built from this folder"
	@echo "make demo      the main job on the shipped tiny model"
	@echo "make test      all tests        make bench     benchmarks against stock MLX"
	@echo "make lint      all checks       make format    reformat Python and C++"
	@echo "make stubs     write the native module's .pyi again"
	@echo "make wheel-macos  the macOS arm64 wheel in dist/, cross-built on Linux"
	@echo "make sanitize  kernel tests under the address, undefined-behaviour and thread sanitizers"

setup: $(VENV)/.installed $(VENV)/.kernels

PIP := $(BIN)/pip install --disable-pip-version-check -q

$(VENV)/.created: tools/prepare_machine.sh
	@tools/prepare_machine.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'pip>=25.1'
	$(PIP) --group build
	@touch $@

# Editable: changes in python/ count at once, changes in csrc/ when a target runs next.
$(VENV)/.installed: $(VENV)/.created $(NATIVE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e . $(BUILD_FLAGS)
	@touch $@

# What runs kernels for other processors on this machine's CPU, for their tests.
$(VENV)/.kernels: tools/prepare_machine.sh $(VENV)/.created
	@tools/prepare_machine.sh $(PYTHON) kernels
	@touch $@

# Tests build and verify the macOS wheel too.
$(VENV)/.test: $(VENV)/.installed $(VENV)/.kernels $(VENV)/.macos $(VENV)/.browser
	$(PIP) --group test
	@touch $@

$(VENV)/.browser: tools/prepare_machine.sh $(VENV)/.created
	@tools/prepare_machine.sh $(PYTHON) browser
	@touch $@

$(VENV)/.macos: tools/prepare_machine.sh $(VENV)/.created
	@tools/prepare_machine.sh $(PYTHON) macos
	$(PIP) --group macos
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) --group lint
	@touch $@

demo: $(VENV)/.installed
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
	find $(CLANG_FORMATTED) | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.lint
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)
	find $(CLANG_FORMATTED) | xargs $(BIN)/clang-format -i

stubs: $(VENV)/.installed
	$(BIN)/python tools/write_stubs.py

sanitize: $(VENV)/.test
	tools/sanitize.sh $(BIN)

wheel-macos: $(VENV)/.macos
	$(BIN)/python tools/macos/build_wheel.py dist

clean:
	rm -rf $(VENV) build dist
