# Every task of the project. GNU make 3.81 or newer; `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
TESTS  ?=
ARGS   ?=

BIN := $(VENV)/bin
PY  := $(BIN)/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check install

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

##@ Use

.PHONY: demo
demo: $(VENV)/.runtime ## run a whole data hall on this machine: twin, lake, alerts
	$(BIN)/hallwatch demo $(ARGS)

.PHONY: up
up: $(VENV)/.runtime ## start the services of this machine and keep them running
	$(BIN)/hallwatch up $(ARGS)

##@ Develop

.PHONY: test
test: $(VENV)/.test ## run the tests; TESTS=tests/faults runs others, ARGS="-k spool" is passed on
	$(PY) $(if $(TESTS),-m pytest $(TESTS) -m "not bench",tests/both.py) $(ARGS)

.PHONY: faults
faults: $(VENV)/.test ## kill, freeze, fill and cut a whole system; SEEDS=1-10, ONLY=kill_sink, ARGS=--full
	$(PY) tests/faults/run.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

.PHONY: bench
bench: $(VENV)/.test ## measure, each figure beside its baseline
	$(PY) tests/bench/run.py $(ARGS)

.PHONY: check
check: $(VENV)/.dev ## check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: docs
docs: $(VENV)/.runtime ## write the generated pages of docs/ again
	$(BIN)/hallwatch docs $(ARGS)

##@ Maintain

EXTRAS := --extra kafka --extra coolant --extra attestation

# The lowest supported Python resolves: a package that only older versions need must be in the lock.
# The other locks start as copies of dev.txt, so that one package has one version and its hashes everywhere.
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --no-config --no-emit-options \
	--generate-hashes --allow-unsafe --strip-extras --build-deps-for=wheel

.PHONY: lock
lock: $(VENV)/.dev ## pin every dependency by hash (Python 3.11); ARGS=--upgrade takes newer versions
	@$(PY) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "make lock needs a $(VENV) of Python 3.11")'
	$(LOCK) $(ARGS) $(EXTRAS) --extra test --extra dev -o requirements/dev.txt pyproject.toml
	cp requirements/dev.txt requirements/test.txt
	cp requirements/dev.txt requirements/runtime.txt
	cp requirements/dev.txt requirements/dashboards.txt
	$(LOCK) $(EXTRAS) --extra test -o requirements/test.txt pyproject.toml
	$(LOCK) $(EXTRAS) -o requirements/runtime.txt pyproject.toml
	$(LOCK) --extra dashboards -o requirements/dashboards.txt pyproject.toml

.PHONY: clean
clean: ## remove the environment, caches and build output; data stays
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z-]*:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

# One environment grows with need: runtime, then test, then dev, each from its lock.
# Nothing is downloaded that no hash names: wheels only, since building a source archive fetches its build
# tools unpinned, and hatchling, which links the checkout in, is in every lock.

$(VENV)/.%: requirements/%.txt pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "Installing $< into $(VENV)"
	@$(PIP) --require-hashes --only-binary :all: -r $<
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hallwatch needs Python 3.11 or newer, and $(PYTHON) is not; say make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
