"""README and docs against the code: what they show loads, what they name exists, and what they leave out is noticed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import errors
from airflow_provider_pgddl.engine.commands.ddl import HELD
from airflow_provider_pgddl.engine.job import file
from airflow_provider_pgddl.engine.journal.ddl import STATUSES
from airflow_provider_pgddl.engine.pipeline import model as files
from airflow_provider_pgddl.engine.pipeline import tags
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight.unsupported_keys import unsupported
from airflow_provider_pgddl.engine.schema import flags
from airflow_provider_pgddl.engine.stages import ALL_STAGES, STAGES
from docs import pictures
from docs.generated import journal, layers, operators
from tests.conftest import REPOSITORY
from tests.unit.documents import DOCS, LEAVES, README, blocks

DDL = DOCS / "reference" / "ddl.md"
SCHEMA = DOCS / "reference" / "schema-gate.md"
EXIT_CODES = DOCS / "reference" / "exit-codes.md"
RUN_STAGES = DOCS / "how-to" / "run-stages.md"
INT_TO_BIGINT = DOCS / "how-to" / "int-to-bigint.md"
DECIDE_ON_DDL = DOCS / "how-to" / "ddl-that-waits.md"
ARCHITECTURE = DOCS / "explanation" / "architecture.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


# What is shown works


@pytest.mark.parametrize("text", [text for page in PAGES for text in blocks(page, "yaml")])
def test_the_pipeline_files_load_and_use_only_what_is_built(text: str) -> None:
    assert unsupported(load_pipeline(text)) == []


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
