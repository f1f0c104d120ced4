# Complete on a machine with Python 3.11-3.13 and Java 17: everything else comes from the lock, into .venv.
#   make demo    two embedded Postgres servers, a shop, writers and a developer at work, a migration and a rewrite
#   make test    lint, types and every test        make test ARGS="tests/unit -k ddl"
#   make bench   copying 500,000 rows and 200 tables beside psql, pgcopydb and Spark JDBC, what the event triggers add
#                to a CREATE TABLE, how long the schema gate looks at 500 tables, and catching up in small
#   make bench-full    copying 5 million rows and 2,000 tables, catching up on 1 million changes beside native
#                replication, pgbench while rows are captured, and a rewrite of 5 million rows beside pg_repack and
#                psycopack, as far as those are installed

ARGS ?=
# Processes that share the tests out, a file to each at a time: every one starts servers of its own.
WORKERS ?= 2

# What is installed is known by content: a checkout of another branch changes times, a lock changes its checksum.
STAMP := .venv/.installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d ' ' -f 1)

.PHONY: demo test lint bench bench-full venv prerequisites lock
.DEFAULT_GOAL := test

demo: $(STAMP)
	@.venv/bin/pgddl demo

test: lint
	.venv/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/mypy

bench: $(STAMP)
	@.venv/bin/python -m benchmarks copy_rows --small
	@.venv/bin/python -m benchmarks.ddl_cost
	@.venv/bin/python -m benchmarks.schema_gate
	@.venv/bin/python -m benchmarks.catch_up --changes 100000 --keys 20000 --seconds 5 --rounds 1
	@.venv/bin/python -m benchmarks.rewrite --rows 200000 --rounds 1

bench-full: $(STAMP)
	@.venv/bin/python -m benchmarks copy_rows
	@.venv/bin/python -m benchmarks.catch_up
	@.venv/bin/python -m benchmarks.rewrite

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
		--custom-compile-command "make lock" --extra demo --extra dev pyproject.toml --output-file requirements.lock
