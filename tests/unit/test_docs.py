"""README and docs against the code: what they show loads, what they name exists, and what they leave out is noticed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import errors
from airflow_provider_pgddl.engine.commands.ddl import HELD
from airflow_provider_pgddl.engine.job import file
from airflow_provider_pgddl.engine.journal.ddl import STATUSES
from airflow_provider_pgddl.engine.pipeline import model as files
from airflow_provider_pgddl.engine.pipeline import tags
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import changed_keys, load_pipeline
from airflow_provider_pgddl.engine.preflight.unsupported_keys import BUILT, unsupported
from airflow_provider_pgddl.engine.schema import flags
from airflow_provider_pgddl.engine.stages import ALL_STAGES, STAGES
from docs import pictures
from docs.generated import journal, layers, operators, pipeline_file
from tests.conftest import REPOSITORY

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
PIPELINE_FILE = DOCS / "reference" / "pipeline-file.md"
DDL = DOCS / "reference" / "ddl.md"
SCHEMA = DOCS / "reference" / "schema-gate.md"
EXIT_CODES = DOCS / "reference" / "exit-codes.md"
RUN_STAGES = DOCS / "how-to" / "run-stages.md"
INT_TO_BIGINT = DOCS / "how-to" / "int-to-bigint.md"
DECIDE_ON_DDL = DOCS / "how-to" / "ddl-that-waits.md"
ARCHITECTURE = DOCS / "explanation" / "architecture.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, '' for those without one; within a list they are indented."""
    found: list[str] = []
    fence: str | None = None
    for line in page.read_text().splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            fence = line.strip()[3:].strip() if fence is None else None
            if fence == language:
                found.append("")
        elif fence == language:
            found[-1] += line
    return found


# What is shown works


@pytest.mark.parametrize("text", [text for page in PAGES for text in blocks(page, "yaml")])
def test_the_pipeline_files_load_and_use_only_what_is_built(text: str) -> None:
    assert unsupported(load_pipeline(text)) == []


def test_the_example_shows_every_key_that_works() -> None:
    shown = {key for text in blocks(PIPELINE_FILE, "yaml") for key in keys_of(yaml.safe_load(text))}
    assert TABLE.keys() - shown == {f"{side}.{key}" for side in ("source", "target") for key in ("dsn", "dsn_command")}
    assert shown <= TABLE.keys()


def keys_of(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    """The dotted keys that a file says something under, `<table>` for a table's name."""
    for name, value in tree.items():
        key = f"{path}{name}"
        if key in LEAVES:
            yield key
        elif f"{path}<table>" in {"rewrite.<table>", "schema.overrides.<table>"}:
            yield from keys_of(value, f"{path}<table>.")
        else:
            yield from keys_of(value, f"{key}.")


def test_the_dag_is_one_of_ten_lines_and_airflow_takes_it_and_those_that_can_go_back(tmp_path: Path) -> None:
    text = next(text for text in blocks(README, "python") if "lifecycle(" in text)
    assert len(text.splitlines()) <= 10
    (back,) = blocks(INT_TO_BIGINT, "py")
    shown = re.sub(r'^(with DAG\("(\w+)".*\)):$', r"\1 as \2:", text + back, flags=re.MULTILINE)
    for name in re.findall(r" as (\w+):$", shown, re.MULTILINE):
        shown += f"print({name}.dag_id, *{name}.task_ids)\n"
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", shown], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dags = {dag: set(tasks) for dag, *tasks in map(str.split, done.stdout.splitlines())}
    until_swap = {*STAGES, "gate", "catch_up"} - {"cleanup"}
    assert dags == {
        "migrate_shop": {f"migrate.{task}" for task in (*until_swap, "cleanup")},
        "orders_bigint": {f"rewrite.{task}" for task in until_swap},
        "orders_bigint_revert": {"revert"},
        "orders_bigint_cleanup": {"cleanup"},
    }


def test_the_job_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks(RUN_STAGES, "json")
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(blocks(README, "yaml")[0])
    Path("job.json").write_text(text)
    assert file.read("job.json").stage == "setup"
    (secrets,) = re.findall(r'`(\{"source": .*?\})`', RUN_STAGES.read_text())
    Path("job.json").write_text(json.dumps({**json.loads(text), "secrets": json.loads(secrets)}))
    monkeypatch.setenv("SHOP_SOURCE", "host=db")
    assert file.read("job.json").conninfo("source") == "host=db"


def test_every_command_line_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def instead(_: object, args: argparse.Namespace) -> int:
        inner = getattr(args, f"{args.command}_command", None)
        called.append(" ".join(filter(None, (args.command, inner))))
        return 0

    monkeypatch.setattr(cli, "call", instead)
    makefile = (REPOSITORY / "Makefile").read_text()
    for line in [line for page in PAGES for block in blocks(page, "") for line in block.splitlines()]:
        match shlex.split(line.partition(" > ")[0], comments=True):
            case ["pgddl", *args] | ["airflow", "pgddl", *args]:
                assert cli.main(args) == 0
            case ["make", target]:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE)
            case ["spark-submit", "--master", _, application, "job.json"]:
                assert (REPOSITORY / application).is_file()
            case ["airflow", "tasks", "test", "migrate_shop", task, _]:
                assert task.removeprefix("migrate.") in STAGES
            case words:
                pytest.fail(f"nobody has tried {words}")
    assert {" ".join(words) for words, _ in cli.each_command()} == set(called)


def test_a_task_is_tried_with_a_date_and_commands_side_by_side_are_about_one_file() -> None:
    """Without one Airflow takes hold of somebody's run that has no logical date."""
    tried = [
        line
        for page in PAGES
        for line in page.read_text().splitlines()
        if re.match(r"\s*(\$ )?airflow (tasks|dags) test ", line)
    ]
    assert tried
    assert [line for line in tried if not re.search(r" \d{4}-\d\d-\d\d$", line)] == []
    (together,) = [block for block in blocks(RUN_STAGES, "") if "airflow tasks test" in block]
    files_named = re.findall(r" -p (\S+)", together)
    assert len(files_named) == 2 and len(set(files_named)) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target.partition("#")[0]).exists(), target


# What is there is named


def test_every_stage_operator_and_exit_code_is_named() -> None:
    (picture,) = blocks(README, "mermaid")
    for stage in ALL_STAGES:
        assert f"| `{stage}` |" in README.read_text()
        assert stage in picture
        assert f"Pgddl{stage.title().replace('_', '')}Operator`" in RUN_STAGES.read_text()
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(map(int, re.findall(r"^\| (\d) \|", EXIT_CODES.read_text(), re.MULTILINE))) == codes


def test_the_readme_is_short_and_quotes_the_last_benchmarks() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 250
    measured = json.loads((REPOSITORY / "benchmarks" / "results" / "latest.json").read_text())
    rewrite = "rewrite of 5,000,000 rows with three indexes"
    for measure, peer, line in (
        ("copy, everything", "pgcopydb, 2 jobs", "copy 5,000,000 rows with three indexes"),
        ("catch-up of 1,000,000 changes of 200,000 keys, change_log", "native logical apply", "catch up with"),
        (rewrite, "repack", "rewrite 5,000,000 rows in place"),
        (f"longest stall of a writer, {rewrite}", "repack", "longest stall of a writer"),
        (f"longest stall of a writer, {rewrite}", "by hand", "longest stall of a writer"),
    ):
        (found,) = [m for m in measured if (m["measure"], m["peer_name"]) == (measure, peer)]
        (row,) = [row for row in text.splitlines() if row.startswith(f"| {line}")]
        for value in (found["ours"], found["peer"]):
            assert (f"{value:.0f} ms" if found["unit"] == "ms" else f"{value:.1f} s") in row
        for tool in ("pgcopydb", "pg_repack"):
            assert tool not in row or f"{tool} {found['machine'][tool]}" in row


def test_every_status_of_ddl_is_explained() -> None:
    text = DDL.read_text()
    for status in STATUSES:
        assert f"\n| `{status}` |" in text
    for status in HELD:
        assert f"\n**{status}.** " in DECIDE_ON_DDL.read_text()


def test_every_option_of_the_policy_is_explained() -> None:
    text = SCHEMA.read_text()
    for names, _ in flags.OPTIONS:
        assert all(f"`{name}" in text for name in names), names
    for name in (name.partition(".")[2] for name in LEAVES if re.fullmatch(r"schema\.\w+", name)):
        assert f"`{name}" in text or f"schema.{name}" in text, name


def test_the_lists_of_tags_are_those_of_the_code() -> None:
    text = " ".join(DDL.read_text().split())
    for name, listed in (
        ("create_tags", files.Ddl().create_tags),
        ("drop_tags", files.Ddl().drop_tags),
        ("create_tags", tags.CREATE_TAGS),
        ("drop_tags", tags.DROP_TAGS),
        ("blocked_tags", tags.BLOCKED_TAGS),
    ):
        assert f"- `{name}`: {', '.join(listed)}." in text
    assert f"`scope: replicated_tables`: {', '.join(tags.REPLICATED_TABLES_TAGS)}." in text
    assert f"stands for: {', '.join(tags.COMMON_ALTER_TABLE_SUBCOMMANDS)}." in text
    left_out = text.partition("Note what these leave out: ")[2].partition(". ")[0]
    for tag in re.split(", | and ", left_out):
        assert tag not in (*tags.CREATE_TAGS, *tags.DROP_TAGS, *tags.BLOCKED_TAGS), tag


def test_modules_that_the_explanation_names_exist() -> None:
    engine = REPOSITORY / "airflow_provider_pgddl" / "engine"
    packages = "|".join(path.name for path in engine.iterdir() if (path / "__init__.py").is_file())
    sections = {key.rpartition(".")[0] for key in LEAVES}
    named = 0
    for page in (DOCS / "explanation").glob("*.md"):
        for module in re.findall(rf"`(?:engine\.)?((?:{packages})\.[a-z_]+)(?:\.\w+)?`", page.read_text()):
            path = engine / module.replace(".", "/")
            known = path.is_dir() or path.with_suffix(".py").is_file() or module in sections | LEAVES.keys()
            assert known, f"{page.name}: {module}"
            named += 1
    assert named > 15


def test_tables_that_the_architecture_names_exist() -> None:
    text = ARCHITECTURE.read_text()
    for name in ("journal", "core"):
        (row,) = re.findall(rf"^\|.*\(set `{name}`\)[^|]*\|([^|]*)", text, re.MULTILINE)
        scripts = sorted((REPOSITORY / "airflow_provider_pgddl" / "engine" / "sql" / name).glob("*.up.sql"))
        tables = {t for script in scripts for t in re.findall(r"CREATE TABLE pgddl\.(\w+)", script.read_text())}
        assert set(re.findall(r"`([a-z_]+)`", row)) == tables


# The table of all keys


LEAVES = {key: field for key, field, _ in pipeline_file.leaves()}
TABLE = {key.key: key for key in pipeline_file.each_key()}

# A value other than the default for each key, to see what becomes of it.
OTHER: dict[str, Any] = {
    "tables.include": ["shop.*"],
    "tables.exclude": ["shop.b"],
    "tables.schema_only": ["shop.c"],
    "tables.skip_columns": {"shop.a": ["x"]},
    "tables.where": {"shop.a": "x = 1"},
    "tables.transform": {"shop.a": {"x": "md5(x)"}},
    "tables.operations": ["insert", "update"],
    "tables.existing": "replace",
    "tables.keep_extra": True,
    "tables.keyless": "copy_at_swap",
    "capture.rows": "none",
    "capture.ddl": "wal",
    "capture.identities": True,
    "capture.on_slot_lost": "restart_tables",
    "capture.max_retained_wal": "1GB",
    "capture.failover": True,
    "ddl.scope": "everything",
    "ddl.schemas": "shop",
    "ddl.tags": "pgl_ddl_deploy",
    "ddl.create_tags": ["CREATE TABLE"],
    "ddl.drop_tags": ["DROP TABLE"],
    "ddl.blocked_tags": ["INSERT"],
    "ddl.exclude_alter_table_subcommands": "common",
    "ddl.multi_statements": "single_only",
    "ddl.out_of_scope_references": "unhandled",
    "trusted_roles": ["app"],
    "ddl.missing_role": {"app": "app_v2"},
    "ddl.ddl_only": True,
    "ddl.on_failure": "queue",
    "ddl.approval": "required",
    "ddl.lock_safe": False,
    "ddl.lock_timeout": "1s",
    "ddl.retry_for": "1min",
    "ddl.signal_blockers": "cancel",
    "schema.validation": "warn_only",
    "schema.validation_interval": "5s",
    "schema.source_added_columns": "add",
    "schema.target_added_columns": "stop",
    "schema.source_removed_columns": "preserve",
    "schema.target_added_constraints": "allow",
    "schema.type_mismatches": "cast_if_safe",
    "schema.safe_casts_allowed": False,
    "schema.allow_type_cast": {"shop.a.x": "text"},
    "schema.allow_schema_drift": ["target_superset"],
    "schema.preserve_columns": {"shop.a": ["x"]},
    "schema.null_removed_columns": {"shop.a": ["x"]},
    "schema.auto_migrate.types": ["add_column"],
    "schema.auto_migrate.approval": "auto",
    "schema.overrides.<table>.validation": "warn_only",
    "schema.overrides.<table>.source_added_columns": "add",
    "schema.overrides.<table>.target_added_columns": "stop",
    "schema.overrides.<table>.source_removed_columns": "preserve",
    "schema.overrides.<table>.target_added_constraints": "allow",
    "schema.overrides.<table>.type_mismatches": "cast_if_safe",
    "schema.overrides.<table>.safe_casts_allowed": False,
    "schema.overrides.<table>.allow_type_cast": {"x": "text"},
    "schema.overrides.<table>.skip_columns": ["x"],
    "schema.force": True,
    "rewrite.<table>.alter": ["ALTER COLUMN id TYPE bigint"],
    "rewrite.<table>.partition_by.ahead": 4,
    "rewrite.<table>.partition_by.column": "x",
    "rewrite.<table>.partition_by.default_partition": True,
    "rewrite.<table>.partition_by.hash": 4,
    "rewrite.<table>.partition_by.list": True,
    "rewrite.<table>.partition_by.range": "day",
    "rewrite.<table>.order_by": ["x"],
    "backfill.chunk_bytes": "8MB",
    "backfill.workers": 2,
    "backfill.throttle.max_replica_lag": "1s",
    "backfill.throttle.max_active_backends": 10,
    "backfill.throttle.query": "SELECT false",
    "replay.window_rows": 10,
    "replay.until_lag": "5s",
    "replay.run_for": "10min",
    "follow.finish": True,
    "verify.before_swap": False,
    "swap.lock_timeout": "10ms",
    "swap.retries": 3,
    "swap.fence": "read_only",
    "swap.keep_old": False,
    "swap.signal_blockers": "cancel",
    "swap.recreate_materialized_views": True,
    "swap.way_back": "shop_back",
    "spark.conn_id": "other",
    "spark.master": "local[1]",
    "spark.conf": {"spark.executor.memory": "2g"},
    "spark.begin": "at_once",
    "spark.wait": "1min",
    "spark.allow_plaintext": True,
    "spark.secrets.file": "/run/secrets/pgpass",
}


IN_PLACE = ("swap.keep_old", "swap.signal_blockers", "swap.recreate_materialized_views", "tables.include")
NEED_FORCE = (
    "schema.allow_type_cast", "schema.null_removed_columns", "schema.overrides.<table>.allow_type_cast",
)  # fmt: skip


def plain(key: str) -> dict[str, Any]:
    """A short file in which the key may stand, and does not say anything yet."""
    here: dict[str, Any] = {"pipeline": "shop", "source": {"conn_id": "a"}}
    if key.startswith("rewrite.") or key in IN_PLACE:
        partition_by = {"partition_by": {"column": "y", "range": "month"}} if ".partition_by." in key else {}
        here["rewrite"] = {"shop.a": partition_by}
    else:
        here |= {"target": {"conn_id": "b"}, "tables": {"include": ["shop.a"]}}
    if key in ("capture.on_slot_lost", "capture.failover"):
        here["capture"] = {"rows": "wal"}
    if key == "tables.keyless":
        here["swap"] = {"fence": "lock"}
    if key == "tables.keep_extra":
        here["tables"]["existing"] = "adopt"
    if key == "swap.way_back":
        here["swap"] = {"fence": "read_only"}
    if key in NEED_FORCE:
        here["schema"] = {"force": True}
    return here


def with_key(key: str, value: Any) -> Pipeline:
    """That file with the key in it."""
    tree = place = plain(key)
    *path, last = ("shop.a" if step == "<table>" else step for step in key.split("."))
    for step in path:
        place = place.setdefault(step, {})
    if last in ("list", "hash"):
        del place["range"]  # one of the three
    place[last] = value
    return load_pipeline(tree)


def without_key(key: str) -> Pipeline:
    return load_pipeline(plain(key))


def test_every_key_has_its_line_and_no_line_is_of_a_key_that_is_gone() -> None:
    assert TABLE.keys() == LEAVES.keys()
    endpoints = {f"{side}.{key}" for side in ("source", "target") for key in ("conn_id", "dsn", "dsn_command")}
    endpoints.add("pipeline")
    assert OTHER.keys() == LEAVES.keys() - endpoints


def test_every_line_has_its_default() -> None:
    for key, row in TABLE.items():
        field = LEAVES[key]
        if row.default == "required":
            assert field.is_required(), key
        elif row.default == "–":
            assert field.get_default() in (None, "inherit"), key
        elif not row.default.startswith("[the lists]"):
            said = with_key(key, yaml.safe_load(row.default.strip("`")))
            assert changed_keys(without_key(key).to_json(), said.to_json()) == [], key
            assert said.to_json() == without_key(key).to_json() | {ORIGIN: said.to_json()[ORIGIN]}, key


def test_every_line_says_what_the_key_takes_and_means() -> None:
    for key, row in TABLE.items():
        assert row.type and row.meaning, key
        said = f"{row.type} {row.meaning}"
        missing = [word for word in words_of(LEAVES[key].annotation) if not re.search(rf"\b{word}\b", said)]
        assert set(missing) <= {"inherit", "common"}, key


def words_of(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for argument in get_args(annotation):
            yield from words_of(argument)


@pytest.mark.parametrize("key", OTHER)
def test_what_is_built_is_said(key: str) -> None:
    found = {finding.what for finding in unsupported(with_key(key, OTHER[key]))}
    found -= {finding.what for finding in unsupported(without_key(key))}
    assert bool(found) == (key in BUILT)
    for word in BUILT.get(key, ()):
        assert f"`{word}`" in TABLE[key].meaning.partition("Works today")[2]


@pytest.mark.parametrize("key", OTHER)
def test_what_may_change_after_setup_is_said(key: str) -> None:
    changed = changed_keys(without_key(key).to_json(), with_key(key, OTHER[key]).to_json())
    assert (TABLE[key].later.how != "free") == bool(changed)


def test_the_example_names_all_that_is_not_built() -> None:
    text = PIPELINE_FILE.read_text().partition('"not built yet"')[2].partition("\n\n")[0]
    for key in BUILT:
        assert f"`{key}: " in text


# What the site makes of the code


def test_every_operator_and_every_table_of_the_journal_has_its_place() -> None:
    text = operators.operators()
    for stage in ALL_STAGES:
        assert f"### Pgddl{stage.title().replace('_', '')}Operator\n" in text
    for name in ("lifecycle", "PgddlDdlApproval", "PgddlNotifier", "ddl_waits", "mismatch_stands"):
        assert f"### {name}\n" in text
    for folder in ("journal", "core", "injector"):
        scripts = (REPOSITORY / "airflow_provider_pgddl" / "engine" / "sql" / folder).glob("*.up.sql")
        made = {t for script in scripts for t in re.findall(r"CREATE TABLE pgddl\.(\w+)", script.read_text())}
        described = dict(re.findall(r"^### (\w+)\n\n(.+)$", journal.tables(folder), re.MULTILINE))
        assert described.keys() == made
    assert "| `cut_over_at` | timestamptz | since when applications" in journal.tables("journal")
    assert "| `slot_lsn` | pg_lsn | How far" in journal.tables("journal")


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.PICTURES[name]()


def test_the_map_of_packages_is_that_of_their_docstrings() -> None:
    page = layers.PAGE.read_text()
    assert layers.layers() in page, "python -m docs.generated.layers writes it"
    assert layers.written(page.replace("What belongs there", "")) == page
