"""Failpoints: their list, the code and the page say the same; every commit of the engine has one; the environment of a
process turns them on, and nothing else does."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import Fenced, Retry, UsageError
from airflow_provider_pgddl.engine.failpoints import NAMES, VARIABLE, failpoint
from airflow_provider_pgddl.engine.parallel import spark_settings
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.conftest import REPOSITORY

ENGINE = REPOSITORY / "airflow_provider_pgddl" / "engine"
PAGE = REPOSITORY / "docs" / "reference" / "failpoints.md"

# Which argument of these calls names the failpoint right before a commit.
NAMING = {"failpoint": 0, "context.fenced": 0, "back.fenced": 0, "self.fenced": 0, "lease.fenced": 2, "_recording": 2}

# Transactions without a failpoint of their own, and why there is no border.
READS = "writes nothing that another session sees"
WITHIN = "in the caller's transaction, or one that has it beside its own"
ALONE = "one commit that is all of a command, or of a metric"
NO_BORDER = {
    "apply.target_alterations.Alterations._make": WITHIN,
    "apply.captured_events._Run._give_away": WITHIN,
    "apply.captured_events._Run._is_kept": READS,
    "capture.ddl_log._create_event_triggers": WITHIN,
    "capture.slot_log.unread": READS,
    "commands.control._control": ALONE,
    "commands.schema._being_altered": READS,
    "following.ddl._look_now": READS,
    "following.ddl._read": READS,
    "following.ddl.came_since": READS,
    "following.ddl.note_late": READS,
    "following.failover._ddl_that_never_was": READS,
    "following.partition_by._make_beside_default": WITHIN,
    "following.sequences.positions": READS,
    "following.source_dump.schema_digest": READS,
    "following.source_dump.settled_dump.dump": READS,
    "journal.ddl.DdlJournal": WITHIN,
    "journal.lease.kept": READS,
    "journal.schema.SchemaJournal.record_many": WITHIN,
    "preflight.new_types": READS,
    "preflight.rewriting": READS,
    "preflight.source_tables": READS,
    "rights.as_owner": READS,
    "rows.chunks._Worker._cells": READS,
    "rows.adopted_rows.insert_or_leave": WITHIN,
    "rows.chunks._Worker._copy": READS,
    "rows.chunks._Worker._taken_back": WITHIN,
    "rows.ingest_for_ddl.clear_changed": WITHIN,
    "rows.partition_cells.make": WITHIN,
    "rows.pending_keys.stage_keys": WITHIN,
    "rows.windows_in_place": WITHIN,
    "rows.fill.fill_together": WITHIN,
    "rows.throttle": READS,
    "server.giving_way": READS,
    "server.pg_dump": READS,
    "server.schema_reading": READS,
    "swapping.across._certainly_not_cut_over": READS,
    "swapping.follow_ups.follow_up.attempt": WITHIN,
    "swapping.in_place._exchange": READS,
    "swapping.in_place._what_new_types_break": READS,
    "swapping.refused_rows": READS,
    "swapping.way_back": READS,
}


def test_every_name_is_reached_at_one_place_and_no_other_is() -> None:
    found = Counter(name for _, tree in _modules() for name in _named(tree))
    assert [name for name, times in found.items() if times > 1] == []
    assert found.keys() == NAMES.keys()


def test_the_page_is_the_list() -> None:
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == list(NAMES.items())


def test_every_sentence_is_one() -> None:
    assert {name: says for name, says in NAMES.items() if not re.fullmatch(r"\S.{15,}[^.]\.", says)} == {}


def test_every_transaction_that_commits_has_a_failpoint() -> None:
    bare, used, seen = list[str](), set[str](), 0
    for module, tree in _modules():
        for where, block in _transactions(tree, module):
            seen += 1
            if any(_reaches_one(part) for part in [*block.body, *(item.context_expr for item in block.items)]):
                continue
            allowed = next((a for a in NO_BORDER if where == a or where.startswith(f"{a}.")), None)
            if allowed:
                used.add(allowed)
            else:
                bare.append(f"{where}, line {block.lineno}")
    assert seen > 80
    assert "\n".join(bare) == ""
    assert used == NO_BORDER.keys(), "what is allowed here and is not needed"


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(ENGINE.rglob("*.py")):
        name = ".".join(file.relative_to(ENGINE).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(file.read_text(encoding="utf-8"))


def _reaches_one(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in NAMING for node in ast.walk(tree))


def _named(tree: ast.AST) -> list[str]:
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        at = NAMING.get(ast.unparse(call.func))
        if at is not None and len(call.args) > at and isinstance(call.args[at], ast.Constant):
            found.append(str(ast.literal_eval(call.args[at])))
    return found


def _transactions(tree: ast.AST, where: str) -> Iterator[tuple[str, ast.With]]:
    """Each `with` that begins one which may commit, with the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inside = f"{where}.{node.name}" if named else where
        if isinstance(node, ast.With) and any(_commits(item.context_expr) for item in node.items):
            yield inside, node
        yield from _transactions(node, inside)


def _commits(expression: ast.expr) -> bool:
    calls = [node for node in ast.walk(expression) if isinstance(node, ast.Call)]
    return any(isinstance(c.func, ast.Attribute) and c.func.attr == "transaction" and not c.keywords for c in calls)


# --- turning them on --------------------------------------------------------------------------------------------------


def test_a_test_turns_one_on_and_off() -> None:
    passes: list[object] = []
    failpoint("swap.before_lock")
    failpoints.turn_on("swap.before_lock", passes.append)
    try:
        failpoint("swap.before_lock")
        failpoint("swap.after_lock")
    finally:
        failpoints.turn_off("swap.before_lock")
    failpoint("swap.before_lock")
    assert passes == [()]
    with pytest.raises(UsageError, match=r"no failpoint 'swap\.befor_lock'"):
        failpoints.turn_on("swap.befor_lock", passes.append)


def at_border(folder: Path, what: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a process whose environment says this of swap.before_lock."""
    env = {**os.environ, VARIABLE: f"{folder} swap.before_lock={what}"}
    program = f"from airflow_provider_pgddl.engine.failpoints import failpoint\n{code}"
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)


def test_the_environment_kills_a_process_at_its_nth_pass_and_no_second_one(tmp_path: Path) -> None:
    passes = "for n in range(5):\n    print(n, flush=True)\n    failpoint('swap.before_lock')"
    killed = at_border(tmp_path, "kill@3", passes)
    assert (killed.returncode, killed.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])
    assert [mark.name for mark in tmp_path.iterdir()] == ["swap.before_lock"]
    again = at_border(tmp_path, "kill@3", passes)
    assert (again.returncode, len(again.stdout.split())) == (0, 5)


def test_the_environment_raises_an_error_of_a_class(tmp_path: Path) -> None:
    catching = "try:\n    failpoint('swap.before_lock')\nexcept Exception as error:\n    print(type(error).__name__)"
    assert at_border(tmp_path, "error:Fenced", catching).stdout == f"{Fenced.__name__}\n"
    (tmp_path / "swap.before_lock").unlink()
    assert at_border(tmp_path, "error:DeadlockDetected", catching).stdout == "DeadlockDetected\n"
    assert psycopg.errors.DeadlockDetected("raised by name").sqlstate == "40P01"


def test_the_environment_holds_a_process_until_it_is_told(tmp_path: Path) -> None:
    env = {**os.environ, VARIABLE: f"{tmp_path} swap.before_lock=wait"}
    program = "from airflow_provider_pgddl.engine.failpoints import failpoint\nfailpoint('swap.before_lock')\nprint(1)"
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True) as held:
        try:
            for _ in range(3000):
                if (tmp_path / "swap.before_lock").exists():
                    break
                with pytest.raises(subprocess.TimeoutExpired):
                    held.wait(0.01)
            assert (tmp_path / "swap.before_lock").exists() and held.poll() is None
            (tmp_path / "swap.before_lock.go").touch()
            assert held.communicate(timeout=30) == ("1\n", None)
        finally:
            held.kill()


def test_whoever_waits_for_a_test_that_is_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "WAIT_AT_MOST", 0.05)
    with pytest.raises(Retry, match=r"nobody made .*go within"):
        failpoints.waiting_for(tmp_path / "go")(())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("swap.before_lock=kill", "is no folder"),
        ("{} swap.befor_lock=kill", "'swap.befor_lock=kill' is no failpoint"),
        ("{} swap.before_lock", "'swap.before_lock' is no failpoint"),
        ("{} swap.before_lock=stop", "is no failpoint"),
        ("{} swap.before_lock=kill@x", "is no failpoint"),
        ("{} swap.before_lock=error:KeyError", "there is no error 'KeyError'"),
        ("{} swap.before_lock=error", "there is no error ''"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        failpoints.parse(text.format(tmp_path))


def test_without_a_connection_none_can_be_lost() -> None:
    with pytest.raises(UsageError, match="no connection is about to commit"):
        failpoints.lose(())


def test_no_pipeline_file_turns_one_on() -> None:
    file = {"pipeline": "p", "source": {"dsn": "host=a"}, "target": {"dsn": "host=b"}, "tables": {"include": ["*.*"]}}
    load_pipeline(file)
    for key, value in ((VARIABLE, "x"), ("failpoints", {}), ("env", {VARIABLE: "x"}), ("spark", {"env": {}})):
        with pytest.raises(UsageError):
            load_pipeline({**file, key: value})


@pytest.mark.parametrize("key", [f"spark.executorEnv.{VARIABLE}", f"spark.yarn.appMasterEnv.{VARIABLE}"])
def test_no_setting_of_spark_turns_one_on(key: str) -> None:
    with pytest.raises(UsageError, match="no setting turns failpoints on"):
        spark_settings.refuse("local[2]", {key: "/tmp swap.before_lock=kill"}, "nothing")


def test_the_variable_is_read_from_the_environment_and_nowhere_else() -> None:
    """Nobody but the module itself, and what hands it on to Spark's workers or refuses it, names the variable."""
    package = REPOSITORY / "airflow_provider_pgddl"
    named = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if VARIABLE in (text := file.read_text(encoding="utf-8")) or re.search(r"failpoints(\.| import )VARIABLE", text)
    }
    assert named == {
        "engine/failpoints.py",
        "engine/parallel/spark_settings.py",
        "engine/parallel/spark.py",
        "operators/base.py",
    }
    source = ast.parse((package / "engine/failpoints.py").read_text(encoding="utf-8"))
    assert ast.unparse(source).count("os.environ") == 2
