"""Which captured commands are done again on the target, and by which statements. Pure.

Every event gets one Decision. Where a statement could act on the wrong object, or a table could lose its rows without a
word, the verdict is `unhandled`, with its reason:

- SET SCHEMA, or ALTER SCHEMA RENAME, across the border of the scope, both ways: a table that leaves it would go on to
  be filled on the target without its DDL, one that comes in has rows there that nobody copied.
- In place, what takes the table being rewritten away from its name: RENAME, SET SCHEMA, DROP.
- A parent or partition that is out of scope.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl import grants
from airflow_provider_pgddl.engine.ddl.added import pin_defaults
from airflow_provider_pgddl.engine.ddl.captured import CapturedEvent, DroppedMeta, TableMeta, Verdict
from airflow_provider_pgddl.engine.ddl.dropping import (
    cascade_statements,
    concurrent,
    drop_statements,
    dropped_names,
    referencing,
    taken_along,
)
from airflow_provider_pgddl.engine.ddl.parse import (
    Name,
    Node,
    deparse,
    kind_of,
    parse,
    quoted,
    statement_node,
    unwrap,
)
from airflow_provider_pgddl.engine.ddl.qualify import CannotQualify, map_roles, qualify
from airflow_provider_pgddl.engine.ddl.rebuild import CannotRebuild, rebuild
from airflow_provider_pgddl.engine.ddl.references import (
    cut_constraint_actions,
    cut_foreign_keys,
    family_outside,
    likeness_outside,
)
from airflow_provider_pgddl.engine.ddl.rules import Rules, is_drop
from airflow_provider_pgddl.engine.ddl.statements import Statement, could_be, match, read_string, unsafe
from airflow_provider_pgddl.engine.ddl.subcommands import cut
from airflow_provider_pgddl.engine.ddl.targets import (
    Target,
    advance,
    dropped_relation,
    dropped_schema,
    kind,
    main_targets,
    rename_schema,
    touched,
)
from airflow_provider_pgddl.engine.errors import StageFailed

__all__ = ["Decision", "Rules", "decide", "map_roles"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about one event."""

    event: CapturedEvent
    verdict: Verdict
    statements: tuple[str, ...]
    """With all names spelled out; in order."""
    rule: str
    """Why: the rule that left it out, the reason why it cannot be handled, ``in scope``."""
    notes: tuple[str, ...]
    """What was left out of the statement, or done otherwise."""
    touches: tuple[Name, ...]
    """The relations and other objects concerned, by their names before and after."""
    rebuilt: bool
    """From metadata, not from its own text."""
    concurrently: bool
    """A statement refuses to run in a transaction."""
    kind: str
    """The kind of object; ``table`` for whatever touches a table."""


class _Stop(Exception):
    """The event is decided: not applied."""

    def __init__(self, verdict: Verdict, rule: str) -> None:
        self.verdict, self.rule = verdict, rule
        super().__init__(rule)


def decide(events: Sequence[CapturedEvent], rules: Rules, versions: MutableMapping[int, TableMeta]) -> list[Decision]:
    """One decision per event, in order. `versions` are the tables before the first event, and after the last behind it.

    Events of one string belong into one call: its statements are told apart by all of them.
    """
    tables = set(rules.tables)
    own = _own_texts(events, dict(versions))
    decisions = []
    for event, texts in zip(events, own, strict=True):
        judge = _Judge(event, rules, versions, tables, *texts)
        decisions.append(judge.decision())
        judge.advance()
    return decisions


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the client's string has for one event."""

    string: tuple[Statement, ...]
    statement: Statement | str
    """Or why it cannot be told."""


def _own_texts(
    events: Sequence[CapturedEvent], versions: MutableMapping[int, TableMeta]
) -> list[tuple[_Texts, list[Target]]]:
    targets = []
    strings: dict[str, tuple[Statement, ...]] = {}
    batches: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(events):
        targets.append(main_targets(event, versions))
        advance(event, versions)
        text = event["statement"]
        if text not in strings:
            strings[text] = read_string(text)
        if not event["nested"]:
            batches.setdefault((event["batch"], text), []).append(number)
    found: dict[int, Statement | str] = {}
    for (_, text), numbers in batches.items():
        some = [events[number] for number in numbers]
        found.update(zip(numbers, match(strings[text], some, [targets[n] for n in numbers]), strict=True))
    own = []
    for number, event in enumerate(events):
        statement = found[number] if number in found else _inner(event, targets[number])
        own.append((_Texts(strings[event["statement"]], statement), targets[number]))
    return own


def _inner(event: CapturedEvent, targets: Sequence[Target]) -> Statement | str:
    """The text of a command within a function, where the server's context told it."""
    if event["inner"] is None:
        return f"the text of this {event['tag']} within a function is not known"
    statements = read_string(event["inner"])
    if len(statements) == 1 and statements[0].tree is not None and could_be(statements[0], event, targets):
        return statements[0]
    return f"the text within the function is not this {event['tag']}"


class _Judge:
    def __init__(
        self,
        event: CapturedEvent,
        rules: Rules,
        versions: MutableMapping[int, TableMeta],
        tables: set[Name],
        texts: _Texts,
        targets: list[Target],
    ) -> None:
        self.event, self.rules, self.versions, self.tables = event, rules, versions, tables
        self.texts, self.targets = texts, targets
        self.notes: list[str] = []
        self.touches = dict.fromkeys(touched(event, versions))
        self.rebuilt = False
        self._family: dict[Name, list[list[str]]] | None = None

    def decision(self) -> Decision:
        try:
            statements = tuple(self._statements())
            verdict: Verdict = "apply"
            rule = "in scope"
        except _Stop as stop:
            statements, verdict, rule = (), stop.verdict, stop.rule
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
        """Versions and tables as they are behind the event, whatever was decided."""
        for target in self.targets:
            if target.before in self.tables and target.relation is not None and target.relation != target.before:
                self.tables.add(target.relation)
        advance(self.event, self.versions)
        renamed = self._schema_rename()
        if renamed is not None:
            rename_schema(self.versions, *renamed)
            self.tables.update((renamed[1], name) for schema, name in list(self.tables) if schema == renamed[0])

    # --- the order of questions ---------------------------------------------------------------------------------------

    def _statements(self) -> list[str]:
        tag = self.event["tag"]
        if self.rules.pipeline in self.event["disabled_for"]:
            raise _Stop("skip", "DDL was switched off for this pipeline")
        if refused := self.rules.tag_refused(tag):
            self._not_silently(refused)
            raise _Stop("skip", refused)
        if is_drop(tag):
            return self._drop()
        if not self.targets:
            return self._nameless()
        self._in_scope()
        self._policy()
        tree = self._tree()
        if isinstance(tree, str):
            return self._rebuilt(tree)
        if likeness_outside(statement_node(tree), self._covers_table):
            return self._rebuilt("it takes its columns from a table that is out of scope")
        try:
            return self._finished(tree)
        except StageFailed as error:
            return self._rebuilt(error.what)

    def _not_silently(self, refused: str) -> None:
        """A renamed schema takes the pipeline's tables away from their names, listed tag or not."""
        renamed = self._schema_rename()
        if renamed is not None and any(schema == renamed[0] for schema, _ in self.tables):
            raise _Stop("unhandled", f"{refused}, but the schema holds tables of this pipeline")

    def _in_scope(self) -> None:
        places = [(target.schema, target.relation) for target in self.targets]
        inside = [self._covers(*place) for place in places]
        was = [self._covers(t.before[0], t.before) if t.before is not None else now
               for t, now in zip(self.targets, inside, strict=True)]  # fmt: skip
        if self.event["tag"].startswith("ALTER "):
            self._border(inside, was)
        if not any(inside):
            raise _Stop("skip", self.rules.out_of_scope(*places[0]))
        if not all(inside):
            raise _Stop("unhandled", "it concerns objects in scope and out of scope")
        self._in_place()

    def _border(self, inside: Sequence[bool], was: Sequence[bool]) -> None:
        for target, now, before in zip(self.targets, inside, was, strict=True):
            if now != before:
                raise _Stop("unhandled", _crossing(quoted(target.before or ("", "it")), now))
        renamed = self._schema_rename()
        if renamed is not None:
            if self.rules.in_place and any(schema == renamed[0] for schema, _ in self.tables):
                raise _Stop("unhandled", f"in place: the schema {quoted(('', renamed[0]))} was renamed")
            if self._covers(renamed[0], None) != self._covers(renamed[1], None):
                raise _Stop("unhandled", _crossing(f"schema {quoted(('', renamed[0]))}", any(inside)))
        elif self.targets[0].relation is None and not self.rules.narrow:
            moved = self._moved_from()
            if moved is not None and self._covers(moved, None) != any(inside):
                raise _Stop("unhandled", _crossing(f"{self.targets[0].type} of {quoted(('', moved))}", any(inside)))

    def _moved_from(self) -> str | None:
        """The old schema of what is no relation and was moved by SET SCHEMA."""
        statement = self.texts.statement
        if isinstance(statement, str) or kind_of(statement.node) != "AlterObjectSchemaStmt":
            return None
        own = statement.said.own
        if own is not None and own[0]:
            return own[0]
        schemas = [each for each in self.event["path"] if not each.startswith("pg_")]
        if len({self._covers(each, None) for each in schemas}) > 1:
            raise _Stop("unhandled", "SET SCHEMA of an object whose old schema is not told")
        return schemas[0] if schemas else None

    def _schema_rename(self) -> tuple[str, str] | None:
        if self.event["tag"] != "ALTER SCHEMA" or isinstance(self.texts.statement, str):
            return None
        node = self.texts.statement.node
        return (node.subname, node.newname) if kind_of(node) == "RenameStmt" else None

    def _in_place(self) -> None:
        for target in self.targets if self.rules.in_place else ():
            if target.before is not None and target.relation != target.before:
                raise _Stop("unhandled", f"in place: {quoted(target.before)}, which is being rewritten, was renamed")

    def _policy(self) -> None:
        """`multi_statements`, as the seed has it."""
        rules, string = self.rules.multi_statements, self.texts.string
        counted = [each for each in string if each.tag != "TRANSACTION"]
        if rules == "single_only":
            if len(counted) > 1:
                raise _Stop("unhandled", f"multi_statements: single_only: the string holds {len(counted)} statements")
            if self.event["nested"]:
                raise _Stop("unhandled", "multi_statements: single_only: the command was run by another")
        if rules == "safe_only" and len(counted) > 1:
            for each in counted:
                if each.tree is None or unsafe(each, self.rules.blocked_tags):
                    raise _Stop("unhandled", f"multi_statements: safe_only: the string also holds {each.tag or '?'}")

    # --- what is covered ----------------------------------------------------------------------------------------------

    def _covers(self, schema: str | None, name: Name | None) -> bool:
        """Whether an object is in scope: by its schema, and by the relation that it is or belongs to."""
        if self.rules.narrow:
            return name is not None and self._takes(name)
        if schema is None:
            return self.rules.scope == "everything"
        return self.rules.has_schema(schema) and (name is None or not self._is_table(name) or self._takes(name))

    def _covers_table(self, name: Name) -> bool:
        if self.rules.in_place:  # other tables are there
            return True
        if self.rules.narrow or (name[0] and self.rules.has_schema(name[0])):
            return self._takes(name)
        return False

    def _takes(self, name: Name) -> bool:
        """A table of the pipeline, or one that hangs below one."""
        seen: set[Name] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self.tables or (not self.rules.narrow and self.rules.takes(name)):
                return True
            if name not in seen:
                seen.add(name)
                waiting += [(parent[0], parent[1]) for parent in self._parents().get(name, ())]
        return False

    def _parents(self) -> dict[Name, list[list[str]]]:
        if self._family is None:
            metas = [*self.versions.values(), *self.event["tables"].values()]
            self._family = {(meta["schema"], meta["name"]): meta["parents"] for meta in metas}
        return self._family

    def _is_table(self, name: Name) -> bool:
        metas: Iterator[TableMeta] = iter([*self.event["tables"].values(), *self.versions.values()])
        return any(meta["kind"] in ("r", "p") for meta in metas if (meta["schema"], meta["name"]) == name)

    def _covers_dropped(self, dropped: DroppedMeta) -> bool:
        return self._covers(dropped_schema(dropped), dropped_relation(dropped))

    # --- statements ---------------------------------------------------------------------------------------------------

    def _drop(self) -> list[str]:
        named, along = dropped_names(self.event), taken_along(self.event)
        if not any(self._covers_dropped(each) for each in [*named, *along]):
            first = (named or self.event["dropped"])[:1]
            places = [(dropped_schema(each), dropped_relation(each)) for each in first] or [(None, None)]
            raise _Stop("skip", self.rules.out_of_scope(*places[0]))
        for each in named if self.rules.in_place else ():
            if each["type"] == "table" and self._covers_dropped(each):
                raise _Stop("unhandled", f"in place: {each['identity']}, which is being rewritten, was dropped")
        self._policy()
        if self.event["tag"] == "DROP OWNED":
            raise _Stop("unhandled", "DROP OWNED revokes rights as well, which its event does not show")
        statement = self.texts.statement
        node = None if isinstance(statement, str) else statement.node
        try:
            statements, notes = drop_statements(self.event, self._covers_dropped, node)
        except CannotRebuild as error:
            raise _Stop("unhandled", error.what) from None
        self.notes += notes
        if len(statements) > 1:
            statements = referencing(self.event, self.versions) + statements
        return statements

    def _nameless(self) -> list[str]:
        """GRANT, REVOKE, ALTER DEFAULT PRIVILEGES: all is in the text."""
        if self.rules.in_place and self.event["tag"] == "ALTER DEFAULT PRIVILEGES":
            raise _Stop("skip", self.rules.out_of_scope(None, None))
        tree = self._tree()
        if isinstance(tree, str):
            raise _Stop("unhandled", f"{tree}, and its event names no objects")
        node = statement_node(tree)
        self.touches.update(dict.fromkeys(grants.named(node)))
        left, gone = grants.reduce(node, self._covers)
        if not left:
            raise _Stop("skip", f"scope: {', '.join(gone) or 'it belongs to no schema'} is out of scope")
        self.notes += [f"out of scope, left out of the statement: {name}" for name in gone]
        self._policy()
        try:
            return self._finished(tree)
        except StageFailed as error:
            raise _Stop("unhandled", error.what) from None

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
        try:
            qualify(tree, self.event, self.targets)
        except CannotQualify as error:
            return str(error)
        return tree

    def _finished(self, tree: ParseResult, *, text: bool = True) -> list[str]:
        """A tree of which all that is to be left out is cut, and what has to be done before and behind it."""
        node = statement_node(tree)
        for outside in family_outside(node, self._covers_table):
            raise _Stop("unhandled", outside)
        statements = self._cascade(node) if text else []
        whole = _length(node)
        excluded = self._cut_subcommands(node)
        reasons = [f"subcommand {name} is excluded" for name in excluded]
        for name in cut_foreign_keys(node, self._covers_table):
            if self.rules.out_of_scope_references == "unhandled":
                raise _Stop("unhandled", f"it refers to {quoted(name)}, which is out of scope")
            reasons.append(f"foreign key to {quoted(name)}, which is out of scope, left out")
        if self.rules.out_of_scope_references == "strip":
            for constraint in cut_constraint_actions(node, self._left_out_keys()):
                reasons.append(f"the foreign key {quoted(('', constraint))} was left out")
        self.notes += reasons
        if reasons and whole and not _length(node):
            raise _Stop("skip", reasons[0])
        if self._about_left_out_key(node):
            raise _Stop("skip", "it is about a foreign key that was left out")
        oid = self.targets[0].oid if text and self.targets else None
        behind = pin_defaults(tree, self.event, oid) + _access_method(tree)
        return [*statements, deparse(tree), *behind]

    def _cut_subcommands(self, node: Node) -> list[str]:
        if self.rules.in_place or kind_of(node) != "AlterTableStmt":
            return []
        return cut(node, self.rules.excluded_subcommands) if node.objtype == pg_query_pb2.OBJECT_TABLE else []

    def _left_out_keys(self) -> set[str]:
        """Foreign keys of the event's table that the target was not given."""
        keys: set[str] = set()
        for target in self.targets:
            for meta in (self.versions.get(target.oid), self.event["tables"].get(str(target.oid))):
                for constraint in meta["constraints"] if meta is not None else ():
                    other = constraint["references"]
                    if constraint["type"] == "f" and other and not self._covers_table((other[0], other[1])):
                        keys.add(constraint["name"])
        return keys

    def _about_left_out_key(self, node: Node) -> bool:
        if self.rules.out_of_scope_references != "strip" or self.rules.in_place:
            return False
        if kind_of(node) == "RenameStmt" and node.rename_type == pg_query_pb2.OBJECT_TABCONSTRAINT:
            return node.subname in self._left_out_keys() or node.newname in self._left_out_keys()
        return False

    def _cascade(self, node: Node) -> list[str]:
        """CASCADE is never run: what it took along is dropped by name before."""
        changed = False
        if kind_of(node) == "AlterTableStmt" and node.objtype != pg_query_pb2.OBJECT_TYPE:
            for command in (unwrap(each) for each in node.cmds):
                if command.behavior == pg_query_pb2.DROP_CASCADE:
                    command.behavior = pg_query_pb2.DROP_RESTRICT
                    changed = True
        elif kind_of(node) == "AlterDomainStmt" and node.behavior == pg_query_pb2.DROP_CASCADE:
            node.behavior = pg_query_pb2.DROP_RESTRICT
            changed = True
        if not changed:
            return []
        try:
            statements, notes = cascade_statements(self.event, self._covers_dropped)
        except CannotRebuild as error:
            raise _Stop("unhandled", error.what) from None
        self.notes += notes
        return statements

    def _rebuilt(self, reason: str) -> list[str]:
        """Statements from the metadata, judged like any other."""
        try:
            rebuilt = rebuild(self.event, self.versions)
        except CannotRebuild as error:
            raise _Stop("unhandled", f"{reason}; {error.what}") from None
        self.rebuilt = True
        self.notes.append(f"rebuilt from metadata: {reason}")
        statements: list[str] = []
        skipped: _Stop | None = None
        for each in rebuilt:
            try:
                statements += self._finished(parse(each), text=False)
            except _Stop as stop:
                if stop.verdict != "skip":
                    raise
                skipped = stop
            except StageFailed as error:
                raise _Stop("unhandled", f"{reason}; {error.what}") from None
        if not statements and skipped is not None:
            raise skipped
        return statements


def _crossing(what: str, comes_in: bool) -> str:
    if comes_in:
        return f"{what} comes into the scope: its rows were never copied"
    return f"{what} leaves the scope: nothing would follow it there"


def _length(node: Node) -> int:
    return len(node.cmds) if kind_of(node) == "AlterTableStmt" else 0


def _access_method(tree: ParseResult) -> list[str]:
    """CREATE TABLE … USING as a statement of its own: postgast 0.2 prints no space behind it."""
    node = statement_node(tree)
    if kind_of(node) != "CreateStmt" or not node.access_method:
        return []
    method, node.access_method = node.access_method, ""
    behind = parse("ALTER TABLE t SET ACCESS METHOD heap")
    alter = statement_node(behind)
    alter.relation.CopyFrom(node.relation)
    alter.cmds[0].alter_table_cmd.name = method
    return [deparse(behind)]
