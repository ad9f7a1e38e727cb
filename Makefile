# Every target makes its own virtual environment in .venv and installs what it needs by name.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := test check examples bench msgpack conformance server hiredis spark java cli prometheus otel docs
# What the pages are made of: Sphinx, and what the modules import whose docstrings they show.
DOCS := docs conformance prometheus otel

.PHONY: demo pipeline test soak soak-faults aio check docs matrix bench bench-peers bench-spark bench-scale guard clean

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tubes needs Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(shell echo $(1) | tr " " ",")]'
endef

# Brought up to date when pyproject.toml changes.
.venv/ready: pyproject.toml
	$(call install,$(EXTRAS))
	@touch .venv/docs $@

# A part of it: Spark and its Java are no matter of the pages.
.venv/docs: pyproject.toml
	$(call install,$(DOCS))
	@touch $@

demo: .venv/ready  ## crawl real pages on local servers, politely, and prove it; URL=redis: in processes, over a Valkey
	$(BIN)/python examples/demo.py $(if $(URL),--tube-url '$(URL)')

pipeline: .venv/ready  ## the same pages crawled in a loop of streams on Spark, and SQL that proves that none was lost
	$(BIN)/python examples/pipeline.py

test: .venv/ready  ## all tests
	$(BIN)/python -m pytest -n auto --dist loadscope

soak: .venv/ready  ## producers, workers and chaos with a ledger of every task, and a plot: make soak MINUTES=30
	$(BIN)/python -m tests.soak $(or $(MINUTES),10) $(ARGS)

soak-faults: .venv/ready  ## the fault tests, long and again and again: make soak-faults MINUTES=30
	$(BIN)/python tests/faults/rounds.py $(or $(MINUTES),10)

aio: .venv/ready  ## make tubes/aio.py, the API for asyncio, of tubes/sync.py
	$(BIN)/python .ci/make_aio.py

check: .venv/ready  ## lint, types, and the pages
	@$(MAKE) --no-print-directory docs
	$(BIN)/python .ci/make_aio.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/lint_lua.py .venv/luacheck
	$(BIN)/mypy tubes examples tests benchmarks docs/_ext .ci/make_aio.py
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: .venv/docs  ## the pages, into build/docs; a warning is an error
	$(BIN)/python -m sphinx -c docs --quiet --fail-on-warning --keep-going --nitpicky --fresh-env . build/docs

.matrix/nox/bin/nox:
	@$(PYTHON) -m venv .matrix/nox
	@.matrix/nox/bin/python -m pip install --quiet --disable-pip-version-check 'nox>=2026.10'

matrix: .matrix/nox/bin/nox  ## all tests on every Python of this machine, each in an environment of its own: make matrix ARGS="-x tests/golden"
	.matrix/nox/bin/nox -f .ci/noxfile.py $(if $(ARGS),-- $(ARGS))

bench: .venv/ready  ## how fast, beside the queues of the standard library
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: .venv/ready  ## how fast, beside peers that it installs into .peers: make bench-peers ARGS="--quick -k celery"
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-spark: .venv/ready  ## rows and tasks through Spark, beside two processes that put them
	$(BIN)/python -m benchmarks.spark $(ARGS)

bench-scale: .venv/ready  ## what a verb costs when much waits, beside when little does: some eight minutes
	$(BIN)/python -m benchmarks.scale $(ARGS)

guard: .venv/ready  ## whether something has become slower than benchmarks/guard/ratios.json says; ARGS=--update writes it
	$(BIN)/python -m benchmarks.guard $(ARGS)

clean:
	rm -rf .venv .matrix .peers build dist *.egg-info
