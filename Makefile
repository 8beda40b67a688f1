# Needs Python 3.11 or newer with pip; everything is installed into virtual environments of this folder.
PYTHON ?= python3
PIP = -m pip install --quiet --disable-pip-version-check
.PHONY: demo test lint docs clean

demo: .venv/installed
	@.venv/bin/python -m tilewright.demo $(FILES)

# Made again when the dependencies change; the package itself is installed in place.
.venv/installed: pyproject.toml
	@echo "installing into .venv ..."
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python $(PIP) --editable '.[demo]'
	@touch $@

test:
	@echo "installing into .venv-test ..."
	@$(PYTHON) -m venv --clear .venv-test
	@.venv-test/bin/python $(PIP) '.[test]'
	@.venv-test/bin/python -m pytest --numprocesses 2 $(TESTS)

lint:
	@test -x .venv-lint/bin/python || $(PYTHON) -m venv .venv-lint
	@.venv-lint/bin/python $(PIP) --editable '.[dev]'
	@.venv-lint/bin/ruff check .
	@.venv-lint/bin/mypy

# The pages made from the code; a test fails when they are out of date.
docs: .venv/installed
	@.venv/bin/python docs/operators.py
	@.venv/bin/python -m bench table

clean:
	@rm -rf .venv .venv-test .venv-lint build *.egg-info
