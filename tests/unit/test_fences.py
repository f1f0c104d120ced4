"""C11: what writes into the journal commits only while its run is the newest: it is called under a fence, or it is said
here why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.conftest import REPOSITORY

ENGINE = REPOSITORY / "airflow_provider_pgddl" / "engine"
SECTIONS = (
    "blocked_tables", "chunks", "dump_events", "finishes", "follow_ups", "pipelines", "reconfigurations", "stage_runs",
    "tables",
    "verification", "ways_back", "windows",
)  # fmt: skip
JOURNALS = {
    **{f"journal.{section}": "journal" for section in SECTIONS},
    "journal.ddl": "ddl_events",
    "journal.schema": "schema_status",
    "journal.births": "births",
}  # module: its SQL

# Writes in the transaction of whoever calls it, who is looked at in turn.
WITHIN = {
    "apply.dump_events.apply_together",
    "rows.windows_in_place.drain_into_partitions",
    "rows.fill.fill_together",
    "rows.row_counters.count_partial",
    "rows.reload._note_as_window",
    "rows.windows._in_place",
    "rows.windows.note_window",
    "rows.windows.stopped_by_drift",
    "swapping.across._add_foreign_keys",
    "swapping.across._copy_keyless",
    "swapping.in_place._exchange.refuse_changed",
    "swapping.in_place._finish",
    "swapping.in_place._refuse_changed",
    "swapping.in_place.add_foreign_key",
    "following.failover._go_back",
    "swapping.way_back.are_copies_again",
    "swapping.replacing.Replacing.carry_over",
    "swapping.replacing.Replacing.finish",
    "swapping.way_back.WayBack.start",
    "swapping.way_back_across._forget_former_keys",
    "stages.revert._pass_over_ddl",
    "stages.revert._refuse_another",
    "stages.revert._refuse_changed_now",
    "commands.reconfigure._keep_what_was_brought",
    "following.new_plan.record",
    "following.new_plan.record_first_plans",
    "following.new_plan.read_again.note",
    "following.new_plan.read_part_again.note",
    "stages.snapshot._revive",
}
# Nobody else is the newest run, or it is nobody's.
ALONE = {
    "stages._finished": "of a pipeline that no run is under way of: that this one had nothing to do",
    "rows.row_counters.count_refusal": "a metric, once the transaction that met the refusal is over",
    "commands.ddl": "what a person decides about an event, which a run meets as it would have met it before",
    "following.schema_gate._add_lost_commits": "what was told to whom, by whoever looks",
    "following.schema_gate._reports": "the same",
    "following.schema_gate.shown_already": "what was shown to a task of Airflow",
    "commands.news": "what was told to whom, by whoever looks",
    "commands.reset": "it holds the whole pipeline's lock, and takes the journal's rows away",
    "commands.undoing": "the same",
}


def test_whatever_writes_into_the_journal_does_so_under_a_fence() -> None:
    writers, unfenced, used = _writers(), list[str](), set[str]()
    assert len(writers) > 50
    for module, tree in _trees():
        if module in JOURNALS:
            continue
        names = _imported(tree) | {f.name: f"{module}.{f.name}" for f in tree.body if isinstance(f, ast.FunctionDef)}
        for call, around in _calls(tree):
            target = _called(call, writers, names)
            if target is None:
                continue
            where = ".".join([module, *(n.name for n in around if isinstance(n, ast.FunctionDef | ast.ClassDef))])
            allowed = next((a for a in (*WITHIN, *ALONE) if where == a or where.startswith(f"{a}.")), None)
            if allowed:
                used.add(allowed)
            elif not _is_fenced(around):
                unfenced.append(f"{where}, line {call.lineno}: {target}")
    assert "\n".join(unfenced) == ""
    assert used == {*WITHIN, *ALONE}, "what is allowed here and is not needed"


# Borders before a commit without a look at the token right before it, each with who sees to it.
ON_SOURCE = "on the source, where a newer run has ended the sessions of an older one before it does anything"
BY_A_PERSON = "what a person decides, beside whatever run"
NO_LOOK = {
    **dict.fromkeys(
        ("capture.before_log_commit", "capture.before_published_commit", "capture.before_release_commit",
         "capture.before_stop_commit", "capture.before_triggers_commit", "cleanup.before_unpublished_commit",
         "follow.before_confirm_commit", "forget.before_event_triggers_commit", "forget.before_name_commit",
         "setup.before_event_triggers_commit", "setup.before_language_commit", "swap.before_way_back_stop_commit"),
        ON_SOURCE,
    ),
    **dict.fromkeys(
        ("ddl.before_approved_commit", "ddl.before_decided_commit", "schema.before_approved_commit",
         "sync.before_request_commit"),
        BY_A_PERSON,
    ),
    **dict.fromkeys(
        ("reset.before_finished_commit", "reset.before_journal_commit", "reset.before_table_commit",
         "reset.before_undo_commit"),
        ALONE["commands.reset"],
    ),
    "stage.before_nothing_to_do_commit": ALONE["stages._finished"],
    "migrations.before_up_commit": "behind a lock of its own, for all pipelines",
    "migrations.before_down_commit": "the same",
    "cut_over.before_fence_down_commit": "inside of `lease.kept`",
    "replace.before_log_stop_commit": "what it drops is made anew by each try of a swap, which looks at its end",
    "way_back.before_unmade_commit": "it looks first: the journal forgets the token in this transaction",
}  # fmt: skip


def test_every_border_before_a_commit_is_right_behind_a_look_at_the_token() -> None:
    unfenced, used = list[str](), set[str]()
    for module, tree in _trees():
        for before, border in _failpoints(tree):
            name = re.match(r"failpoint\('?([\w.]*before_\w*commit)", ast.unparse(border))
            if name is None or re.search(r"\b(check|check_fence)\(", ast.unparse(before)):
                continue
            if name[1] in NO_LOOK:
                used.add(name[1])
            else:
                unfenced.append(f"{module}, line {border.lineno}: {name[1]}")
    assert "\n".join(unfenced) == ""
    assert used == {*NO_LOOK}, "what is allowed here and is not needed"


def test_whoever_ends_captures_one_by_one_looks_at_the_token_on_the_way() -> None:
    """These transactions are the source's, where no token is: a run that takes long over them may not be the newest."""
    without = list[str]()
    ends = re.compile(r"(stop_capture_of|stop_slot_capture_of|change_log\.stop|take_back_capture)$")
    for module, tree in _trees():
        calls = [(ast.unparse(call.func), call, around) for call, around in _calls(tree) if module not in ALONE]
        looks = {_functions(around)[-1] for name, _, around in calls if re.search(r"check_fence$|lease\.check$", name)}
        for name, call, around in calls:
            functions = _functions(around)
            in_loop = functions and any(isinstance(n, ast.For) for n in around[around.index(functions[0]) :])
            if not (in_loop and ends.search(name)) or functions[-1] in looks:
                continue
            blocks = [ast.unparse(item.context_expr) for n in around if isinstance(n, ast.With) for item in n.items]
            if not any("fenced(" in text for text in blocks):
                without.append(f"{module}.{functions[-1].name}, line {call.lineno}")
    assert "\n".join(without) == ""


def _functions(around: tuple[ast.AST, ...]) -> list[ast.FunctionDef]:
    return [n for n in around if isinstance(n, ast.FunctionDef)]


def _failpoints(tree: ast.AST) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Each that stands alone, with the statement before it in its block."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            for before, one in pairwise(block) if isinstance(block, list) else ():
                called = one.value.func if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) else None
                if isinstance(called, ast.Name) and called.id == "failpoint":
                    yield before, one


def _writers() -> set[str]:
    """The methods of the journals that write, also through another one."""
    found = set[str]()
    for module, queries in JOURNALS.items():
        parts = (ENGINE / "sql" / f"{queries}.sql").read_text().split("-- name: ")[1:]
        written = {
            name.split()[0] for name in parts
            if re.search(r"\b(INSERT INTO|UPDATE pgddl|DELETE FROM)\b", name)
        }  # fmt: skip
        for node in ast.walk(ast.parse((ENGINE / f"{module.replace('.', '/')}.py").read_text())):
            if isinstance(node, ast.FunctionDef):
                texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                if texts & written:
                    found.add(node.name)
    while True:
        more = set[str]()
        for module in JOURNALS:
            for node in ast.walk(ast.parse((ENGINE / f"{module.replace('.', '/')}.py").read_text())):
                if isinstance(node, ast.FunctionDef):
                    calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
                    attributes = [f for f in calls if isinstance(f, ast.Attribute)]
                    own = {f.attr for f in attributes if ast.unparse(f.value) in ("self", "self.schema")}
                    if own & found:
                        more.add(node.name)
        if more <= found:
            return found
        found |= more


@cache
def _trees() -> list[tuple[str, ast.Module]]:
    """The engine's modules."""
    return [(_module(file), ast.parse(file.read_text())) for file in sorted(ENGINE.rglob("*.py"))]


def _module(file: Path) -> str:
    parts = file.relative_to(ENGINE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module) -> dict[str, str]:
    """What a name of the engine means in this module."""
    prefix = "airflow_provider_pgddl.engine"
    return {
        alias.asname or alias.name: f"{(node.module or '').removeprefix(prefix).removeprefix('.')}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix)
        for alias in node.names
    }


def _calls(tree: ast.AST, around: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node, around
        yield from _calls(node, (*around, node))


def _called(call: ast.Call, writers: set[str], names: dict[str, str]) -> str | None:
    if isinstance(call.func, ast.Name):
        meant = names.get(call.func.id, "")
        return meant if meant in WITHIN else None
    if not isinstance(call.func, ast.Attribute):
        return None
    of, method = ast.unparse(call.func.value), call.func.attr
    if f"{names.get(of, of).removeprefix('.')}.{method}" in WITHIN or (of, method) == ("way_back", "start"):
        return f"{of}.{method}"
    is_journal = re.search(r"journal|Journal|[Bb]irths|^ddl$|^own$|schema$", of)
    return f"{of}.{method}" if is_journal and method in writers else None


def _is_fenced(around: tuple[ast.AST, ...]) -> bool:
    """By a block around it, or by the function's last look at the token."""
    functions = [ast.unparse(n) for n in around if isinstance(n, ast.FunctionDef)]
    blocks = [ast.unparse(item.context_expr) for n in around if isinstance(n, ast.With) for item in n.items]
    # `_recording`: gate's, fenced where a run looks; `watched`: a window's, which looks at the token at its end.
    if any(re.search(r"fenced\(|_recording\(|\bwatched\(", text) for text in blocks):
        return True
    return bool(functions) and "lease.check(" in functions[-1]
