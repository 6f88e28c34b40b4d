# The commands of the project. Each one first sees to .venv (.ci/setup.sh), which takes no time when
# nothing changed. `make` alone lists them.

# The interpreter that .venv is made with; empty means the first Python 3.11 to 3.13 on the PATH.
PYTHON ?=
# Extra arguments for the command behind a target: make run ARGS="..." or make test ARGS="-k losses".
ARGS ?=

# Every process compiles all of PyTorch's modules at its start where this variable forbids to keep them.
unexport PYTHONDONTWRITEBYTECODE

BIN = .venv/bin
PACKAGES = fedapp strategies clients

.PHONY: help run test coverage lint types format tables docs bench audit lock clean set-up

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo '  Options: ARGS="..." goes to the command; PYTHON=/path/to/python3.12 chooses the interpreter.'

run: set-up ## train FedDr+ on 20 heterogeneous clients, simulated on this machine
	@$(BIN)/fedapp run $(ARGS)

test: lint types ## lint, type check and the whole test suite
	$(BIN)/python -m pytest -n 3 --dist load $(ARGS)

coverage: set-up ## the whole test suite with its coverage; slower than test
	$(BIN)/python -m pytest -n 3 --dist load $(PACKAGES:%=--cov=%) --cov-report=term --cov-report=xml $(ARGS)

lint: set-up ## ruff: rules and formatting; import-linter: the layers of the packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache --no-logo

types: set-up ## mypy over the three packages
	$(BIN)/mypy

format: set-up ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

tables: set-up ## write the tables of methods and keys anew: README, docs/methods.md, docs/security.md, pyproject.toml
	@$(BIN)/python docs/generate.py

docs: set-up ## build the documentation as a site: site/index.html
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto docs site $(ARGS)
	@echo 'site/index.html'

bench: set-up ## what federated rounds cost beside plain PyTorch training, as ratios
	@$(BIN)/fedapp bench $(ARGS)

audit: set-up ## look the locked packages up in the public list of known vulnerabilities
	$(BIN)/uv tool run --from 'pip-audit>=2.7' pip-audit --disable-pip --require-hashes -r requirements.lock $(ARGS)

lock: set-up ## write requirements.lock anew; ARGS="--upgrade" takes newer versions
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	  --python-version 3.11 --extra dev --constraint constraints.txt \
	  --custom-compile-command "make lock" $(ARGS) pyproject.toml -o requirements.lock

clean: ## remove .venv, caches and reports; runs/ stays
	rm -rf .venv .coverage .coverage.* coverage.xml htmlcov dist build site
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

set-up: ## make or renew .venv, and nothing else
	@PYTHON='$(PYTHON)' sh .ci/setup.sh
