# Every target does its own set-up: a virtual environment in .venv, installed once for each change of pyproject.toml.
# PYTHON may name another interpreter (make demo PYTHON=/opt/python3.12/bin/python3).

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTHON ?=
# All tests by default, a process for each core; a file stays in one process, with what it makes once.
PYTEST_ARGS ?= -n auto --dist loadfile

.PHONY: demo test lint clean

demo: $(VENV)/.installed-demo
	$(BIN)/hyco-npu demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# A stamp stands for a finished step: what broke half-way is done again. The dev install holds the demo's too.
$(VENV)/.created:
	@set -e; python=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: hyco-npu needs Python 3.11 or newer, found: $$($(or $(PYTHON),python3) --version 2>&1 || true)." >&2; \
	  echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	"$$python" -m venv --clear $(VENV) || { \
	  echo "error: $$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/.created
	@echo "Installing hyco-npu into $(VENV) (a few minutes, once)"
	$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.created
	@echo "Installing hyco-npu and its development tools into $(VENV) (a few minutes, once)"
	$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.installed-demo $@
