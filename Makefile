# `make` regenerates the default study, `make test` runs the tests; both set up .venv from nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: all env test lint format bench readme crate container-test clean

all: env
	$(BIN)/snakemake --cores all

env: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# Tests run side by side; more threads each would only wait for each other.
test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/Snakefile workflow/rules
	$(BIN)/snakemake --lint
	bash .ci/audit

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/Snakefile workflow/rules

bench: env
	for name in training sampling tracing; do $(BIN)/python -m benchmarks.$$name || exit 1; done

# The README's findings and costs, from results/default and its picture of the rules.
readme: env
	$(BIN)/python -m docs.readme
	$(BIN)/python docs/rulegraph.py

# The default study, or another with STUDY=studies/NAME.yaml, as a Workflow Run RO-Crate: results/<study>/crate.
crate: env
	$(BIN)/snakemake --cores all $(if $(STUDY),--configfile $(STUDY))
	$(BIN)/python -m docs.crate $(STUDY) $(if $(AGENT),--agent "$(AGENT)")

# The Dockerfile, built and tried: minutes, as root, with Debian's buildah and debootstrap.
container-test: env
	$(BIN)/python -m pytest -m container

clean:
	rm -rf results .snakemake
