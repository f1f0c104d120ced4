"""`pgddl` as people type it: its answers, its exit codes, and no stack trace for a mistake of theirs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl import cli, cli_schema
from tests.conftest import REPOSITORY

PIPELINE = """
pipeline: shop
source: {dsn: "${SHOP_SOURCE}"}
target: {dsn: "${SHOP_TARGET}"}
tables: {include: ["shop.*"]}
"""
# Port 1 is nobody's.
NOBODY = "postgresql://mover:hush-hush@127.0.0.1:1/shop"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(PIPELINE)
    return path


def pgddl(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """In this process: to start one and to import everything takes longer than any answer."""
    command = list(map(str, args))
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            code = cli.main(command)
        except SystemExit as ended:  # argparse's way
            code = ended.code  # type: ignore[assignment]
    return kept_quiet(subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue()))


def as_typed(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "airflow_provider_pgddl.cli", *map(str, args)]
    return kept_quiet(subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=120))


def kept_quiet(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """No stack trace, and no password."""
    assert "Traceback" not in done.stdout + done.stderr
    assert "hush" not in done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["fly"], 2, "usage: pgddl"),
        (["status", "-p", "none.yaml"], 2, "none.yaml: cannot read the pipeline file"),
        (["status", "-p", "shop.yaml"], 5, "127.0.0.1"),
        (["--version"], 0, "pgddl"),
    ],
)
def test_the_program_ends_with_the_code(
    pipeline: Path, args: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(pipeline.parent)
    done = as_typed(*args, SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("words", [words for words, _ in cli.each_command()], ids=" ".join)
def test_every_command_says_its_exit_codes(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    assert "3 blocked by a mismatch" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "setup"],
        ["run", "lunch", "-p", "shop.yaml"],
        ["status"],
        ["check", "-p", "shop.yaml", "--speed"],
        ["ddl"],
        ["ddl", "list"],
        ["ddl", "list", "-p", "shop.yaml", "--status", "lost"],
        ["ddl", "show", "-p", "shop.yaml"],
        ["ddl", "show", "seven", "-p", "shop.yaml"],
        ["ddl", "resolve", "7", "-p", "shop.yaml"],
        ["ddl", "skip", "7", "-p", "shop.yaml"],
        ["ddl", "resolve-exception", "7", "-p", "shop.yaml"],
        ["schema"],
        ["schema", "validate"],
        ["schema", "diff", "-p", "shop.yaml"],
        ["schema", "validate", "-p", "shop.yaml", "--schema-validation=loose"],
        ["metrics"],
        ["pause"],
        ["resume", "-p", "shop.yaml", "--reason", "enough"],
        ["cancel"],
    ],
)
def test_a_wrong_call_is_exit_code_2(args: list[str]) -> None:
    done = pgddl(*args)
    assert done.returncode == 2
    assert "usage: pgddl" in done.stderr


CONTROL = [["pause", "--reason", "the nightly report"], ["resume"], ["cancel"]]
DDL = [
    ["ddl", "list"],
    ["ddl", "show", "7"],
    ["ddl", "approve", "--all"],
    ["ddl", "retry"],
    ["ddl", "resolve", "7", "--note", "by hand"],
    ["ddl", "skip", "7", "--note", "not wanted"],
    ["ddl", "enable"],
    ["ddl", "disable"],
    ["ddl", "preview"],
    ["ddl", "exceptions"],
    ["ddl", "resolve-exception", "7", "--note", "by hand"],
    ["ddl", "killed"],
]


SCHEMA = [["schema", "validate"], ["schema", "diff", "--table", "shop.orders"], ["schema", "sync", "--apply"]]


@pytest.mark.parametrize(
    "command",
    [["check"], ["status"], ["reset", "--yes"], ["run", "setup"], ["ddl", "list"], ["metrics"], *CONTROL, *SCHEMA],
    ids=" ".join,
)
def test_a_missing_pipeline_file_is_exit_code_2(command: list[str]) -> None:
    done = pgddl(*command, "-p", "none.yaml")
    assert done.returncode == 2
    assert "none.yaml: cannot read the pipeline file" in done.stderr


def test_an_unknown_key_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE + "speed: 11\n")
    done = pgddl("status", "-p", tmp_path / "shop.yaml")
    assert done.returncode == 2
    assert "line 6" in done.stderr
    assert "speed" in done.stderr


def test_a_missing_variable_is_exit_code_2(pipeline: Path) -> None:
    done = pgddl("run", "setup", "-p", pipeline, SHOP_TARGET=NOBODY, SHOP_SOURCE="")
    assert done.returncode == 2
    assert "SHOP_SOURCE is not set" in done.stderr


@pytest.mark.parametrize("command", [["check"], ["status"], ["reset", "--yes"], *CONTROL, *DDL, *SCHEMA], ids=" ".join)
def test_an_unreachable_server_is_worth_retrying(pipeline: Path, command: list[str]) -> None:
    done = pgddl(*command, "-p", pipeline, "--json", SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert done.returncode == 5
    assert json.loads(done.stdout)["error"] == "Unreachable"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("backfill", "backfill"),
        ("setup..replay", "setup snapshot backfill schema_sync replay"),
        ("verify, swap", "verify swap"),
        ("setup..backfill,verify", "setup snapshot backfill verify"),
        ("swap..swap", "swap"),
        ("revert,replay..swap", "revert replay verify swap"),
    ],
)
def test_stages_are_named_one_by_one_or_by_a_range(text: str, stages: str) -> None:
    assert cli.named_stages(text) == tuple(stages.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lunch", "there is no stage 'lunch'"),
        ("setup..lunch", "there is no stage 'lunch'"),
        ("setup,", "there is no stage ''"),
        ("", "there is no stage ''"),
        ("setup..", "there is no stage ''"),
        ("replay..setup", "replay does not lead to setup"),
        ("setup..revert", "setup does not lead to revert"),
    ],
)
def test_what_names_no_stages_is_exit_code_2(text: str, said: str) -> None:
    done = pgddl("run", text, "-p", "shop.yaml")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("stages", "option", "said"),
    [
        ("snapshot,backfill", "--again", "--again is for stage setup"),
        ("setup..replay", "--mend", "--mend is for stage verify"),
        ("verify,swap", "--dry-run", "verify, swap has no dry run"),
    ],
)
def test_an_option_goes_with_the_stage_that_it_is_for(pipeline: Path, stages: str, option: str, said: str) -> None:
    done = pgddl("run", stages, option, "-p", pipeline, SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_only_a_swap_is_rehearsed(pipeline: Path) -> None:
    done = pgddl("run", "replay", "--dry-run", "-p", pipeline, SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert done.returncode == 2
    assert "replay has no dry run" in done.stderr


@pytest.mark.spark
def test_an_unreachable_server_found_by_a_stage_is_worth_retrying(pipeline: Path) -> None:
    done = as_typed("run", "setup", "-p", pipeline, "--json", SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["error"] == "Unreachable"


@pytest.mark.parametrize("command", [["run", "backfill"], ["reset", "--yes"]])
def test_a_table_without_its_schema_is_exit_code_2(pipeline: Path, command: list[str]) -> None:
    done = pgddl(*command, "-p", pipeline, "--tables", "orders", SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert (done.returncode, "write it as schema.table" in done.stderr) == (2, True), done.stderr


def test_reset_asks_first(pipeline: Path) -> None:
    done = pgddl("reset", "-p", pipeline, SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
    assert done.returncode == 2
    assert "--yes" in done.stderr


def test_without_java_a_stage_is_one_clear_line(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").symlink_to(Path(sys.executable).parent / "spark-submit")
    done = as_typed(
        "run",
        "setup",
        "-p",
        pipeline,
        PATH=str(tmp_path / "bin"),
        JAVA_HOME="",
        SHOP_SOURCE=NOBODY,
        SHOP_TARGET=NOBODY,
    )
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr


def test_an_unknown_connection_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("pipeline: shop\nsource: {conn_id: nowhere}\nrewrite: {shop.orders: {}}\n")
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = as_typed("status", "-p", tmp_path / "shop.yaml", **home)
    assert done.returncode == 2
    assert "Airflow knows no connection nowhere" in done.stderr


def test_the_modules_that_every_airflow_call_imports_are_light() -> None:
    source = (
        "import sys; import airflow_provider_pgddl.cli;"
        "print([m for m in sys.modules if m.split('.')[0] in ('airflow', 'pyspark', 'psycopg', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_approve_wants_events_or_all(pipeline: Path) -> None:
    for which in ([], ["7", "--all"]):
        done = pgddl("ddl", "approve", *which, "-p", pipeline, SHOP_SOURCE=NOBODY, SHOP_TARGET=NOBODY)
        assert done.returncode == 2
        assert "which events?" in done.stderr


@pytest.mark.parametrize("command", [["run", "setup"], *SCHEMA], ids=" ".join)
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--allow-schema-drift=type_casts", "--force"),
        ("--allow-schema-drift=everything", "everything"),
        ("--skip-columns=ssn", "ssn"),
    ],
)
def test_a_wrong_flag_of_the_policy_is_exit_code_2(
    pipeline: Path, command: list[str], flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "-p", str(pipeline), flag]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("which", [[], ["--dry-run", "--apply"]])
def test_sync_either_shows_or_does(
    pipeline: Path, which: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOP_SOURCE", NOBODY)
    monkeypatch.setenv("SHOP_TARGET", NOBODY)
    assert cli.main(["schema", "sync", "-p", str(pipeline), *which]) == 2
    assert "give --dry-run, or --apply" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colour_is_for_terminals_whose_users_want_it(
    terminal: bool, no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("NO_COLOR", no_color)
    assert cli_schema._colour() is coloured


def test_airflow_gets_the_same_commands() -> None:
    (group,) = cli.airflow_commands()
    assert group.name == "pgddl"
    theirs = dict(leaves(group.subcommands))
    ours = dict(cli.each_command())
    assert list(theirs) == list(ours)
    for words, command in theirs.items():
        parser = argparse.ArgumentParser()
        for arg in command.args:
            arg.add_to_parser(parser)
        flags = {flag for action in parser._actions for flag in action.option_strings or [action.dest]}
        assert {flag for option in ours[words].options for flag in option.flags} <= flags


def leaves(commands: Iterable[Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Airflow's commands with the words by which each is called, groups inside groups."""
    for command in commands:
        if hasattr(command, "subcommands"):
            yield from (((command.name, *words), inner) for words, inner in leaves(command.subcommands))
        else:
            yield (command.name,), command
