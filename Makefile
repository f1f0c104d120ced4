# Complete on a machine with Python 3.11-3.13 and Java 17: everything else comes from the lock, into .venv.
#   make demo    two embedded Postgres servers, a shop at work: a migration, back, forward again, and a rewrite
#   make test    lint, types, docs and tests: every scenario        make test ARGS="tests/unit -k ddl"
#   make check   lint, types and unit tests, for the loop at the desk: less than a minute
#   make test-all    the same with every scenario in each of its combinations of server version and way to capture
#   make docs    the documentation as a site, into site/; a warning or a link that leads nowhere is an error
#   make bench   ours beside its peers in small: ratios, in a few minutes
#   make bench-full    the same in full, by which the goals are judged, into benchmarks/results; some hours.
#               Installs what Debian has of the peers where it may. make bench-full BENCH="rewrite catch_up"

BENCH ?=
ARGS ?=
# Processes that share the tests out, a file to each at a time: every one starts servers of its own. There is one more
# than this suite's two cores, as tests with JVMs and schedulers wait for a quarter of their time. The files come in
# their order, the quick ones of tests/unit last, so that none has a long file left when the others are done.
WORKERS ?= 3

# What is installed is known by content: a checkout of another branch changes times, a lock changes its checksum.
STAMP := .venv/.installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d ' ' -f 1)

# Some machines forbid it, and every process of a test, of which there are thousands, would compile the package anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all check lint docs bench bench-full venv prerequisites lock
.DEFAULT_GOAL := test

demo: $(STAMP)
	@.venv/bin/pgddl demo

test: lint docs
	.venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(COMBINATIONS) $(ARGS)

test-all: COMBINATIONS := --all-combinations
test-all: test

check: lint
	.venv/bin/python -m pytest -q -n $(WORKERS) tests/unit $(ARGS)

lint: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet

bench: $(STAMP)
	@.venv/bin/python -m benchmarks --small $(BENCH)

bench-full: $(STAMP)
	@sh benchmarks/install-peers
	@.venv/bin/python -m benchmarks $(BENCH)

venv: $(STAMP)

$(STAMP): | prerequisites
	@echo "Installing the locked packages into .venv: some minutes, once"
	@sh .ci/venv "$$(sh .ci/prerequisites)"
	@rm -f .venv/.installed-* && touch $@

# Each time, and before anything else: Java can vanish long after .venv was made.
prerequisites:
	@sh .ci/prerequisites > /dev/null

# For a change of dependencies; needs uv. Universal: one lock for 3.11-3.13 and for every platform.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
		--custom-compile-command "make lock" --extra demo --extra dev --extra docs pyproject.toml --output-file requirements.lock
