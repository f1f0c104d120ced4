"""Which captured commands are done again on the target, and by which statements. Pure.

Every event gets one Decision. Where a statement could act on the wrong object, or a table could lose its rows without a
word, the verdict is `unhandled`, with its reason:

- SET SCHEMA, or ALTER SCHEMA RENAME, across the border of the scope, both ways: a table that leaves it would go on to
  be filled on the target without its DDL, one that comes in has rows there that nobody copied.
- In place, what takes the table being rewritten away from its name: RENAME, SET SCHEMA, DROP.
- A parent or partition that is out of scope.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from postgast import ParseResult

from airflow_provider_pgddl.engine.ddl import grants
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DecisionVerdict, TableMeta
from airflow_provider_pgddl.engine.ddl.client_string import Statement, match, read_string, unsafe
from airflow_provider_pgddl.engine.ddl.decision import WITHIN_REBUILT, Decision, Stop
from airflow_provider_pgddl.engine.ddl.drop_statements import (
    concurrent,
    drop_statements,
    dropped_names,
    referencing,
    taken_along,
    without_members,
)
from airflow_provider_pgddl.engine.ddl.event_objects import (
    EventObject,
    advance,
    dropped_schema,
    kind,
    main_objects,
    rename_schema,
    touched,
)
from airflow_provider_pgddl.engine.ddl.left_out import MADE, LeftOut
from airflow_provider_pgddl.engine.ddl.out_of_scope_references import likeness_outside
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, quoted, statement_node
from airflow_provider_pgddl.engine.ddl.qualify import CannotQualify, qualify
from airflow_provider_pgddl.engine.ddl.quoting import for_parser
from airflow_provider_pgddl.engine.ddl.rebuild import rebuild, shown_by_metadata
from airflow_provider_pgddl.engine.ddl.scope import Coverage, Rules, is_drop
from airflow_provider_pgddl.engine.ddl.trim import Trim
from airflow_provider_pgddl.engine.errors import CannotRebuild, StageFailed
from airflow_provider_pgddl.engine.model.names import Name


def decide(
    events: Sequence[CapturedEvent],
    rules: Rules,
    versions: MutableMapping[int, TableMeta],
    left_out: LeftOut | None = None,
) -> list[Decision]:
    """One decision per event, in order. `versions` are the tables before the first event, and after the last behind it;
    so is `left_out`.

    Events of one string belong into one call: its statements are told apart by all of them.
    """
    left_out = left_out or LeftOut()
    tables = set(rules.tables)
    own = _own_texts(events, dict(versions), rules.major)
    decisions: list[Decision] = []
    rebuilt = set[str]()
    for event, texts in zip(events, own, strict=True):
        decider = _Decider(event, rules, versions, tables, left_out, *texts)
        decision = decider.decision()
        if event.get("within") in rebuilt and decision.verdict == "apply" and shown_by_metadata(decision.statements):
            decision = replace(decision, verdict="skip", rule=WITHIN_REBUILT, statements=())
        if decision.rebuilt:
            rebuilt.add(event["id"])
        decisions.append(decision)
        decider.advance()
    return decisions


def _own_texts(
    events: Sequence[CapturedEvent], versions: MutableMapping[int, TableMeta], major: int
) -> list[tuple[_Texts, list[EventObject]]]:
    targets = []
    strings: dict[str, tuple[Statement, ...]] = {}
    batches: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(events):
        targets.append(main_objects(event, versions))
        advance(event, versions)
        text = event["statement"]
        if text not in strings:
            strings[text] = read_string(for_parser(text, major))
        if not event["nested"]:
            batches.setdefault((event["batch"], text), []).append(number)
    found: dict[int, Statement | str] = {}
    for (_, text), numbers in batches.items():
        some = [events[number] for number in numbers]
        found.update(zip(numbers, match(strings[text], some, [targets[n] for n in numbers]), strict=True))
    own = []
    for number, event in enumerate(events):
        statement = found[number] if number in found else _inner(event, targets[number], major)
        own.append((_Texts(strings[event["statement"]], statement), targets[number]))
    return own


def _inner(event: CapturedEvent, targets: Sequence[EventObject], major: int) -> Statement | str:
    """The text of a command within a function, where the server's context told it."""
    if event["inner"] is None:
        return f"the text of this {event['tag']} within a function is not known"
    # an EXECUTE can have many, whose other events have the same text: this one is told where only one can be it
    (found,) = match(read_string(for_parser(event["inner"], major)), [event], [targets])
    return found.replace("client's string", "text within the function") if isinstance(found, str) else found


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the client's string has for one event."""

    string: tuple[Statement, ...]
    statement: Statement | str
    """Or why it cannot be told."""


_OLD_SNAPSHOT = (
    "its transaction kept one snapshot (REPEATABLE READ), so what others have changed of its tables meanwhile would be"
    " taken back if it was rebuilt from what it saw of them"
)


class _Decider:
    """One event's: `decision` first, then `advance`."""

    def __init__(
        self,
        event: CapturedEvent,
        rules: Rules,
        versions: MutableMapping[int, TableMeta],
        tables: set[Name],
        left_out: LeftOut,
        texts: _Texts,
        targets: list[EventObject],
    ) -> None:
        self.event, self.rules, self.versions, self.tables = event, rules, versions, tables
        self.texts, self.targets = texts, targets
        self.left_out = left_out
        left_out.begin(event)
        self.coverage = Coverage(rules, tables, versions, event, left_out)
        self.notes: list[str] = []
        self.trim = Trim(event, rules, versions, targets, self.coverage, self.notes)
        self.touches = dict.fromkeys(touched(event, versions))
        self.rebuilt = False
        self.needs: Name | None = None

    def decision(self) -> Decision:
        try:
            statements = tuple(self._statements())
            verdict: DecisionVerdict = "apply"
            rule = "in scope"
        except Stop as stop:
            statements, verdict, rule = (), stop.verdict, stop.rule
        self.applies = verdict == "apply"
        return Decision(
            event=self.event,
            verdict=verdict,
            statements=statements,
            rule=rule,
            notes=tuple(self.notes),
            touches=tuple(self.touches),
            rebuilt=self.rebuilt and bool(statements),
            concurrently=concurrent(statement_node(parse(each)) for each in statements),
            kind=kind(self.event, self.targets),
        )

    def advance(self) -> None:
        """Versions, tables and what is left out as they are behind the event, whatever was decided."""
        self._mark_left_out()
        for target in self.targets:
            if target.before is None or target.relation is None or target.relation == target.before:
                continue
            if target.before in self.tables or (not self.rules.narrow and self.rules.takes(target.before)):
                self.tables.add(target.relation)
        advance(self.event, self.versions)
        self.left_out.advance(self.event)
        renamed = self._schema_rename()
        if renamed is not None:
            rename_schema(self.versions, *renamed)
            self.left_out.rename_schema(*renamed)
            self.tables.update((renamed[1], name) for schema, name in list(self.tables) if schema == renamed[0])

    # --- the order of questions ---------------------------------------------------------------------------------------

    def _statements(self) -> list[str]:
        tag = self.event["tag"]
        if self.rules.pipeline in self.event["disabled_for"]:
            raise Stop("skip", "DDL was switched off for this pipeline")
        if refused := self.rules.tag_refused(tag):
            self._not_silently(refused)
            raise Stop("skip", refused)
        if is_drop(tag):
            return self._drop()
        if not self.targets:
            return self._nameless()
        if absent := self.left_out.all_of(tag, self.targets):
            raise Stop("skip", absent.why)
        self._in_scope()
        self._policy()
        tree = self._tree()
        if isinstance(tree, str):
            return self._rebuilt(tree)
        self._needs_nothing_left_out(tree)
        if likeness_outside(statement_node(tree), self.coverage.covers_table):
            return self._rebuilt("it takes its columns from a table that is out of scope")
        try:
            return self.trim.finished(tree, self._written())
        except StageFailed as error:
            return self._rebuilt(error.what)

    # --- what needs a table that the pipeline leaves out ------------------------------------------------------------

    def _needs_nothing_left_out(self, tree: ParseResult) -> None:
        """What is made over what the target does not have is left out like it."""
        if not self._makes():
            return
        target = self.targets[0]
        self.needs = self.needs or self.left_out.needed(tree, self.coverage.leaves_out)
        known = self.left_out.about(target) is not None
        if self.needs is None:
            if known and (behind := [*self.left_out.dependents((target.schema or "", target.name or ""))]):
                self.notes.append(
                    f"to be made on the target by hand, since it was left out with it: {', '.join(behind)}"
                )
            return
        reason = f"it needs {quoted(self.needs)}, which the pipeline leaves out"
        was_there = target.key[0] == "pg_class" and target.key[1] in self.versions
        if not known and self.left_out.may_replace(target, was_there):
            raise Stop("unhandled", f"{reason}, but what it takes the place of is on the target: drop it there")
        raise Stop("skip", reason)

    def _makes(self) -> bool:
        return self.event["tag"] in MADE and len({each.key for each in self.targets}) == 1 and not self.rules.in_place

    def _mark_left_out(self) -> None:
        if self.rules.in_place or self.rules.pipeline in self.event["disabled_for"]:
            return
        if self.applies:
            for target in self.targets if self.event["tag"] in MADE else ():
                self.left_out.objects.pop(target.key, None)
                self.left_out.made.add(target.key)
            return
        if self.needs is None and self._makes():  # out of scope, or by its tag
            with suppress(Stop):
                tree = self._tree()
                self.needs = None if isinstance(tree, str) else self.left_out.needed(tree, self.coverage.leaves_out)
        if self.needs is not None:
            self.left_out.mark(self.targets, self.needs)
        self.left_out.mark_sequences(self.event, self.coverage.leaves_out)

    def _not_silently(self, refused: str) -> None:
        """A renamed schema takes the pipeline's tables away from their names, listed tag or not."""
        renamed = self._schema_rename()
        if renamed is not None and any(schema == renamed[0] for schema, _ in self.tables):
            raise Stop("unhandled", f"{refused}, but the schema holds tables of this pipeline")

    def _in_scope(self) -> None:
        places = [(target.schema, target.relation) for target in self.targets]
        inside = [self.coverage.covers(*place) for place in places]
        was = list(inside)
        for number, target in enumerate(self.targets):
            if target.before is not None:
                was[number] = self.coverage.covers(target.before[0], target.before)
                # a table of the pipeline stays one under another name
                stays = self.rules.narrow or self.rules.has_schema(target.schema or "")
                inside[number] = inside[number] or (was[number] and stays)
        if self.event["tag"].startswith("ALTER "):
            self._border(inside, was)
        if not any(inside):
            if not self.rules.in_place and (moved := self.coverage.family_moved()):
                raise Stop("unhandled", f"a parent or a child is out of scope: {moved}")
            raise Stop("skip", self.rules.out_of_scope(*places[0]))
        if not all(inside):
            raise Stop("unhandled", "it concerns objects in scope and out of scope")
        self._in_place()

    def _border(self, inside: Sequence[bool], was: Sequence[bool]) -> None:
        for target, now, before in zip(self.targets, inside, was, strict=True):
            if now != before:
                raise Stop("unhandled", _crossing(quoted(target.before or ("", "it")), now))
        renamed = self._schema_rename()
        if renamed is not None:
            if self.rules.beside and any(schema == renamed[0] for schema, _ in self.tables):
                raise Stop("unhandled", f"{self.rules.kept}: the schema {quoted(('', renamed[0]))} was renamed")
            if self.coverage.covers(renamed[0], None) != self.coverage.covers(renamed[1], None):
                raise Stop("unhandled", _crossing(f"schema {quoted(('', renamed[0]))}", any(inside)))
        elif self.targets[0].relation is None and not self.rules.narrow:
            moved = self._moved_from()
            if moved is not None and self.coverage.covers(moved, None) != any(inside):
                raise Stop("unhandled", _crossing(f"{self.targets[0].type} of {quoted(('', moved))}", any(inside)))

    def _moved_from(self) -> str | None:
        """The old schema of what is no relation and was moved by SET SCHEMA."""
        statement = self.texts.statement
        if isinstance(statement, str) or kind_of(statement.node) != "AlterObjectSchemaStmt":
            return None
        own = statement.said.own
        if own is not None and own[0]:
            return own[0]
        schemas = [each for each in self.event["path"] if not each.startswith("pg_")]
        if len({self.coverage.covers(each, None) for each in schemas}) > 1:
            raise Stop("unhandled", "SET SCHEMA of an object whose old schema is not told")
        return schemas[0] if schemas else None

    def _schema_rename(self) -> tuple[str, str] | None:
        if self.event["tag"] != "ALTER SCHEMA" or isinstance(self.texts.statement, str):
            return None
        node = self.texts.statement.node
        return (node.subname, node.newname) if kind_of(node) == "RenameStmt" else None

    def _in_place(self) -> None:
        for target in self.targets if self.rules.beside else ():
            if target.before in self.tables and target.before and target.relation != target.before:
                what = f"{quoted(target.before)}, which is being rewritten, was renamed"
                raise Stop("unhandled", f"{self.rules.kept}: {what}")

    def _policy(self) -> None:
        """`multi_statements`, as the seed has it."""
        rules, string = self.rules.multi_statements, self.texts.string
        counted = [each for each in string if each.tag != "TRANSACTION"]
        if rules == "single_only":
            if len(counted) > 1:
                raise Stop("unhandled", f"multi_statements: single_only: the string holds {len(counted)} statements")
            if self.event["nested"]:
                raise Stop("unhandled", "multi_statements: single_only: the command was run by another")
        if rules == "safe_only" and len(counted) > 1:
            for each in counted:
                if each.tree is None or unsafe(each, self.rules.blocked_tags):
                    raise Stop("unhandled", f"multi_statements: safe_only: the string also holds {each.tag or '?'}")

    # --- statements ---------------------------------------------------------------------------------------------------

    def _drop(self) -> list[str]:
        event = without_members(self.event, self.versions)
        named, along = dropped_names(event), taken_along(event)
        if not any(self.coverage.covers_dropped(each) for each in [*named, *along]):
            first = (named or self.event["dropped"])[:1]
            for absent in filter(None, map(self.left_out.dropped, first)):
                raise Stop("skip", absent.why)
            places = [(dropped_schema(each), self.coverage.dropped_relation(each)) for each in first] or [(None, None)]
            raise Stop("skip", self.rules.out_of_scope(*places[0]))
        for each in named if self.rules.beside else ():
            if each["type"] == "table" and self.coverage.covers_dropped(each):
                why = f"{each['identity']}, which is being rewritten, was dropped"
                raise Stop("unhandled", f"{self.rules.kept}: {why}")
        self._policy()
        if self.event["tag"] == "DROP OWNED":
            raise Stop("unhandled", "DROP OWNED revokes rights as well, which its event does not show")
        statement = self.texts.statement
        node = None if isinstance(statement, str) else statement.node
        try:
            statements, notes = drop_statements(event, self.coverage.covers_dropped, node)
        except CannotRebuild as error:
            raise Stop("unhandled", error.what) from None
        self.notes += notes
        if len(statements) > 1:
            statements = referencing(self.event, self.versions) + statements
        return statements

    def _nameless(self) -> list[str]:
        """GRANT, REVOKE, ALTER DEFAULT PRIVILEGES: all is in the text."""
        if self.event["tag"] not in ("GRANT", "REVOKE", "ALTER DEFAULT PRIVILEGES"):
            reason = "its event names no objects"
            if any(self.coverage.covers_dropped(each) for each in self.event["dropped"]):
                raise Stop("unhandled", reason)
            raise Stop("skip", f"scope: {reason}")
        if self.rules.in_place and self.event["tag"] == "ALTER DEFAULT PRIVILEGES":
            raise Stop("skip", self.rules.out_of_scope(None, None))
        tree = self._tree()
        if isinstance(tree, str):
            raise Stop("unhandled", f"{tree}, and its event names no objects")
        node = statement_node(tree)
        self.touches.update(dict.fromkeys(grants.named(node)))
        if absent := self.left_out.without(node):
            if not node.objects:
                raise Stop("skip", absent[0].why)
            self.notes += [f"left out of the statement: {each.why}" for each in absent]
        left, gone = grants.reduce(node, self.coverage.covers)
        if not left:
            raise Stop("skip", f"scope: {', '.join(gone) or 'it belongs to no schema'} is out of scope")
        self.notes += [f"out of scope, left out of the statement: {name}" for name in gone]
        self._policy()
        try:
            return self.trim.finished(tree, self._written())
        except StageFailed as error:
            raise Stop("unhandled", error.what) from None

    def _tree(self) -> ParseResult | str:
        """The event's own statement with all names spelled out, or why it is of no use."""
        tag, statement = self.event["tag"], self.texts.statement
        if tag in ("CREATE TABLE AS", "SELECT INTO"):
            return f"{tag} would fill the table a second time"
        if isinstance(statement, str):
            return statement
        if self.event["settings"].get("standard_conforming_strings") == "off" and "\\" in statement.text:
            return "its strings are not standard-conforming"
        assert statement.tree is not None
        tree: ParseResult = type(statement.tree)()
        tree.CopyFrom(statement.tree)
        tree.stmts[0].stmt_location = tree.stmts[0].stmt_len = 0
        if not grants.without_temporary(statement_node(tree), self.event["names"]):
            raise Stop("skip", "it is about temporary objects")
        try:
            qualify(tree, self.event, self.targets)
        except CannotQualify as error:
            return str(error)
        return tree

    def _written(self) -> str:
        return self.texts.statement if isinstance(self.texts.statement, str) else self.texts.statement.text

    def _rebuilt(self, reason: str) -> list[str]:
        """Statements from the metadata, decided like any other."""
        if self.event.get("kept_snapshot") and any(int(oid) in self.versions for oid in self.event["tables"]):
            raise Stop("unhandled", f"{reason}; {_OLD_SNAPSHOT}")
        try:
            rebuilt = [for_parser(each, self.rules.major) for each in rebuild(self.event, self.versions)]
        except CannotRebuild as error:
            raise Stop("unhandled", f"{reason}; {error.what}") from None
        self.rebuilt = True
        self.notes.append(f"rebuilt from metadata: {reason}")
        statements: list[str] = []
        skipped: Stop | None = None
        for each in rebuilt:
            try:
                tree = parse(each)
                self._needs_nothing_left_out(tree)
                statements += self.trim.finished(tree, each, text=False)
            except Stop as stop:
                if stop.verdict != "skip":
                    raise
                skipped = stop
            except StageFailed as error:
                raise Stop("unhandled", f"{reason}; {error.what}") from None
        if not statements and skipped is not None:
            raise skipped
        return statements


def _crossing(what: str, comes_in: bool) -> str:
    if comes_in:
        return f"{what} comes into the scope: it was never copied"
    return f"{what} leaves the scope: nothing would follow it there"
