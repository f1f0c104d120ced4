"""What a table's policy makes of the differences between source and target: a verdict, and what becomes of each column.

Pure. The differences come from `compatibility.compare_tables`; the words of the options are those of the pipeline file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.pipeline.names import (
    sql_type,
    written,
)
from airflow_provider_pgddl.engine.schema.casts import cast_sql, judge_cast, narrows_integer
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import sql_name as in_sql
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy
from airflow_provider_pgddl.engine.schema.verdict import (
    AutoMigration,
    Choice,
    FindingKind,
    SchemaFinding,
    Verdict,
    VerdictStatus,
)

APPLY = "pgddl schema sync --apply"
WARN_ONLY = (
    "This will become a blocking error with schema.validation: strict. "
    "Continuing for now (--schema-validation=warn-only)"
)
# Of one column each, so nothing of them is left where the column itself is left out.
_PER_COLUMN = (
    "source_added_column", "missing_type", "type_mismatch", "safe_cast", "generated", "identity", "collation",
    "not_null",
)  # fmt: skip

_STRINGS = ("text", "character varying", "character", "name")


def judge(source: TableModel, target: TableModel, differences: Sequence[Difference], policy: TablePolicy) -> Verdict:
    """The verdict on two tables that are both there, and what becomes of each column.

    What rows cannot be written with stops the table whatever the policy says: a column that is NOT NULL and gets no
    value, a key that differs or loses a column, a cast that Postgres does not have, a missing privilege."""
    judgement = _Judgement(source, target, policy)
    judgement.leave_out()
    for difference in differences:
        judgement.take(difference)
    return judgement.verdict()


def judge_missing(differences: Sequence[Difference], policy: TablePolicy) -> Verdict:
    """The verdict where there is nothing to write rows to or to read them from: always a mismatch."""
    return _verdict([replace(d.finding, severity="mismatch") for d in differences], policy)


def refuses_rows(column: ColumnModel) -> bool:
    """Whether a row without a value for the column is refused."""
    return takes_no_null(column) and column.default is None and not column.identity and not column.generated


def takes_no_null(column: ColumnModel) -> bool:
    """Whether the column, or a domain that it is of, is NOT NULL."""
    domain: TypeModel | None = column.type
    while domain is not None:
        if domain.not_null:
            return True
        domain = domain.base
    return column.not_null


def _verdict(findings: Sequence[SchemaFinding], policy: TablePolicy) -> Verdict:
    if policy.validation == "disabled":
        findings = [f for f in findings if f.severity == "mismatch"]
    severities = {f.severity for f in findings}
    status: VerdictStatus = (
        "mismatch" if "mismatch" in severities else "warning" if "warning" in severities else "compatible"
    )
    return Verdict(status, tuple(findings))


class _Judgement:
    """One table's verdict while it is put together, a difference at a time."""

    def __init__(self, source: TableModel, target: TableModel, policy: TablePolicy):
        self.source, self.target, self.policy = source, target, policy
        self.key = {*(source.key or ()), *(target.key or ())}
        self.findings: list[SchemaFinding] = []
        self.skip: set[str] = set()
        self.casts: dict[str, str] = {}
        self.retyped: set[str] = set()
        self.nulls: set[str] = set()
        self.migrations: list[AutoMigration] = []

    def verdict(self) -> Verdict:
        copied = {c.name for c in self.source.columns} - self.skip
        own = [c for c in self.target.columns if c.name not in copied]
        return replace(
            _verdict(self.findings, self.policy),
            skip=frozenset(self.skip),
            casts={name: cast for name, cast in self.casts.items() if name not in self.skip},
            retyped=frozenset(self.retyped - self.skip),
            nulls=tuple(c.name for c in own if c.name in self.nulls),
            taken=frozenset(
                c.name
                for c in self.source.columns
                if c.generated and c.name in copied and (to := self.target.column(c.name)) and not to.generated
            ),
            keep=tuple(c.name for c in own if not c.generated and c.name not in self.nulls),
            migrations=() if self.policy.validation == "disabled" else tuple(self.migrations),
        )

    def leave_out(self) -> None:
        """The columns that the pipeline names: no mismatch, whatever the target has under their names."""
        for column in self.source.columns:
            if column.name not in self.policy.skip:
                continue
            if column.name in self.key:
                what = f"Column '{column.name}' is in skip_columns and part of the key, so it cannot be left out"
                self.stop(SchemaFinding("key", "mismatch", what, column.name, impact="Rows are found by their key"))
                continue
            self.skip.add(column.name)
            there = self.target.column(column.name)
            if there is not None and refuses_rows(there):
                what = f"Column '{column.name}' is left out (skip_columns), and gets no value on the target"
                self.needs_value(SchemaFinding("target_added_column", "mismatch", what, column.name), there)
                continue
            what = f"Column '{column.name}' is left out (skip_columns): its data is not copied"
            kind: FindingKind = "source_added_column" if there is None else "target_added_column"
            self.findings.append(SchemaFinding(kind, "info", what, column.name, source=column.type.text))

    def take(self, difference: Difference) -> None:
        """One difference: its finding, with the severity that the policy gives it, and what follows from it."""
        finding = difference.finding
        if finding.kind in _PER_COLUMN and _column(difference) in self.skip:
            return
        by_kind: dict[str, Callable[[Difference], None]] = {
            "source_added_column": self.source_added,
            "missing_type": self.source_added,
            "renamed_column": self.other_name,
            "column_case": self.other_name,
            "target_added_column": self.target_added,
            "source_removed_column": self.source_removed,
            "type_mismatch": self.types_differ,
            "safe_cast": self.types_differ,
            "generated": self.generated,
            "not_null": self.constraint,
            "target_constraint": self.constraint,
        }
        if finding.kind in by_kind:
            by_kind[finding.kind](difference)
        else:
            # A key or a collation by which rows would be taken for one another, a privilege: no policy helps.
            self.findings.append(finding)

    # What a finding becomes

    def stop(self, finding: SchemaFinding) -> None:
        """A mismatch whatever the policy says."""
        self.findings.append(replace(finding, severity="mismatch"))

    def warn(self, finding: SchemaFinding, follows: str) -> None:
        """The policy lets it pass; `follows` says what that means."""
        self.findings.append(replace(finding, severity="warning", what=_and(finding.what, follows), choices=()))

    def goes_on(self, finding: SchemaFinding, choices: Sequence[Choice] = ()) -> bool:
        """A mismatch that rows could go on with: whether they do."""
        if self.policy.lenient:
            self.warn(finding, WARN_ONLY)
        else:
            choices = () if self.policy.in_place else tuple(choices)
            self.stop(replace(finding, choices=(*finding.choices, *choices)))
        return self.policy.lenient

    def needs_value(self, finding: SchemaFinding, column: ColumnModel) -> None:
        """A column of the target that gets no value and must have one."""
        self.stop(
            replace(
                finding,
                what=_and(finding.what, f"Target's column '{column.name}' is NOT NULL without DEFAULT"),
                impact="Cannot insert rows - column requires a value",
                fix=self.drop_not_null(column),
                reason="target_not_null",
            )
        )

    def drop_not_null(self, column: ColumnModel) -> tuple[str, ...]:
        """Of the column alone: a domain is NOT NULL wherever it is used."""
        alter = f"ALTER TABLE {in_sql(self.target.schema, self.target.name)} ALTER COLUMN {in_sql(column.name)}"
        identity = (f"{alter} DROP IDENTITY;",) if column.identity else ()
        return (*identity, *((f"{alter} DROP NOT NULL;",) if column.not_null else ()))

    def flag(self, name: str, column: str, value: str = "") -> str:
        text = written(*self.policy.table, column) + value
        return f"--{name}={shlex.quote(text)}"

    def migration(self, finding: SchemaFinding, planned: AutoMigration) -> SchemaFinding:
        """The finding with what is going to be done about it."""
        self.migrations.append(planned)
        if planned.approved:
            return replace(finding, what=_and(finding.what, "The target is altered before rows go on"))
        return replace(finding, what=_and(finding.what, f"The change of the target waits for approval: {APPLY}"))

    # Columns on one side only

    def skip_choices(self, column: str) -> list[Choice]:
        if column in self.key:
            return []
        skip = self.flag("skip-columns", column)
        return [
            Choice("Or explicitly skip this column (NOT RECOMMENDED - data loss)", skip),
            Choice("Or allow all source-only columns (DANGEROUS)", "--allow-schema-drift=source_superset --force"),
        ]

    def source_added(self, difference: Difference) -> None:
        finding, name = difference.finding, _column(difference)
        policy = self.policy
        if policy.source_added == "skip" and name not in self.key:
            self.skip.add(name)
            self.warn(finding, "It is left out: its data is not copied")
            return
        if finding.fix and (policy.source_added == "add" or "add_column" in policy.migrate):
            approved = policy.source_added == "add" or policy.approved
            finding = self.migration(finding, AutoMigration("add_column", name, finding.fix, approved))
        if name in self.key:
            self.stop(finding)
        elif self.goes_on(finding, self.skip_choices(name)):
            self.skip.add(name)

    def target_added(self, difference: Difference) -> None:
        finding, column, policy = difference.finding, _target(difference), self.policy
        if refuses_rows(column):
            self.stop(finding)
        elif column.name in policy.null:
            self.make_null(finding, column)
        elif column.name in policy.preserve or policy.target_added == "allow":
            self.findings.append(finding)
        else:
            preserve = Choice("Keep existing values, stop updating", self.flag("preserve-columns", column.name))
            allow = Choice("Or allow all target-only columns", "--allow-schema-drift=target_superset")
            self.goes_on(finding, [preserve, allow])

    def source_removed(self, difference: Difference) -> None:
        finding, column, policy = difference.finding, _target(difference), self.policy
        action = policy.source_removed
        action = "preserve" if column.name in policy.preserve else "null" if column.name in policy.null else action
        if action == "null":
            self.make_null(finding, column)
        elif action == "preserve" and not refuses_rows(column):
            self.warn(finding, "Its values are kept, and not updated")
        elif column.name in self.key:
            self.stop(finding)
        elif action == "drop":
            self.goes_on(self.migration(finding, AutoMigration("drop_column", column.name, finding.fix, True)))
        elif refuses_rows(column) and (action == "preserve" or policy.lenient):
            self.needs_value(finding, column)
        else:
            null = f"{self.flag('null-removed-columns', column.name)} --force"
            self.goes_on(
                finding,
                [
                    Choice("Keep existing values, stop updating", self.flag("preserve-columns", column.name)),
                    Choice("Set to NULL on all synced rows", null),
                ],
            )

    def make_null(self, finding: SchemaFinding, column: ColumnModel) -> None:
        if column.name in self.key:
            self.stop(replace(finding, what=_and(finding.what, "It is part of the key, so it cannot be set to NULL")))
        elif column.generated:
            self.stop(replace(finding, what=_and(finding.what, "It is generated, so it cannot be set to NULL")))
        elif takes_no_null(column):
            what = _and(finding.what, "It is NOT NULL, so it cannot be set to NULL")
            self.stop(replace(finding, what=what, fix=self.drop_not_null(column), reason="target_not_null"))
        else:
            self.nulls.add(column.name)
            self.warn(finding, "It is set to NULL on all synced rows")

    def other_name(self, difference: Difference) -> None:
        """A column of the source that the target has under another name: its data has no place, and the target's
        column no data."""
        finding, name, there, policy = difference.finding, _column(difference), _target(difference), self.policy
        renamed = finding.kind == "renamed_column"
        skipped = name in policy.skip or policy.source_added == "skip"
        kept = policy.source_removed == "preserve" if renamed else policy.target_added == "allow"
        if name in self.key or refuses_rows(there):
            self.stop(finding)
        elif skipped and (kept or there.name in policy.preserve):
            self.skip.add(name)
            self.warn(finding, f"'{name}' is left out, and the values of '{there.name}' are kept")
        elif self.goes_on(finding):
            self.skip.add(name)

    # Columns of both sides

    def types_differ(self, difference: Difference) -> None:
        finding, column, cast = difference.finding, _target(difference), difference.cast
        assert cast is not None, finding.kind
        policy, name, safe = self.policy, column.name, cast.kind == "safe"
        self.retyped.add(name)
        if cast.kind != "impossible" and cast.expression != "column":
            self.casts[name] = cast_sql(name, cast, column.type)
        if safe and (policy.safe_casts_allowed or policy.type_mismatches != "stop"):
            self.findings.append(finding)
            return
        if safe:
            what = _and(finding.what, "The cast keeps every value, but safe_casts_allowed is false")
            finding = replace(finding, what=what, reason="type_mismatch", fix=finding.fix or self.same_type(difference))
        finding = self.widened(difference, finding)
        allowed = policy.allow_type_cast.get(name)
        named = allowed is not None and _is_type(allowed, column)
        if cast.kind == "impossible" or (name in self.key and not safe and not (named and _is_narrowed(difference))):
            self.stop(finding)
        elif named:
            self.warn(finding, f"The cast is allowed (allow_type_cast: {allowed})")
        elif policy.type_mismatches == "cast_always":
            self.warn(finding, "The cast is made all the same (type_mismatches: cast_always)")
        else:
            if allowed is not None:
                what = f"A cast to {allowed} is allowed, but the target's column is {column.type.text}"
                finding = replace(finding, what=_and(finding.what, what))
            allow = f"{self.flag('allow-type-cast', name, f':{column.type.text}')} --force"
            self.goes_on(
                finding,
                [
                    Choice("Or explicitly allow cast" + ("" if safe else " (DATA LOSS)"), allow),
                    Choice("Or allow all casts (DANGEROUS)", "--allow-schema-drift=type_casts --force"),
                ],
            )

    def same_type(self, difference: Difference) -> tuple[str, ...]:
        """The target's column made what the source's is, where `compare_tables` saw no need for it."""
        assert difference.source is not None, difference.finding.kind
        table, column = in_sql(self.target.schema, self.target.name), in_sql(_column(difference))
        was, becomes = _target(difference).type, difference.source.type
        # Postgres assigns back what can be cast safely, but for strings.
        text = was.stored.name in _STRINGS and becomes.stored.name not in _STRINGS
        using = f" USING {column}::{becomes.text}" if text else ""
        return (f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {becomes.text}{using};",)

    def widened(self, difference: Difference, finding: SchemaFinding) -> SchemaFinding:
        """The finding, and a migration where the target's column can become what the source has without any loss."""
        if "safe_type_change" not in self.policy.migrate or not finding.fix or difference.source is None:
            return finding
        name, was, becomes = _column(difference), _target(difference).type, difference.source.type
        if judge_cast(was, becomes, key=name in self.key).kind != "safe":
            return finding
        return self.migration(finding, AutoMigration("safe_type_change", name, finding.fix, self.policy.approved))

    def generated(self, difference: Difference) -> None:
        finding, name = difference.finding, _column(difference)
        if finding.severity != "mismatch":
            self.findings.append(finding)
        elif name in self.key:
            self.stop(finding)
        elif self.goes_on(finding, self.skip_choices(name)[:1]):
            # Postgres takes no value for a generated column: the target computes its own.
            self.skip.add(name)

    def constraint(self, difference: Difference) -> None:
        finding = difference.finding
        if finding.severity != "mismatch":
            self.findings.append(finding)
        elif self.policy.target_constraints == "allow":
            self.warn(finding, "A row that it refuses stops the table")
        else:
            self.goes_on(finding, [Choice("Or allow any drift (DANGEROUS)", "--allow-schema-drift=all --force")])


def _and(what: str, more: str) -> str:
    return f"{what.rstrip('.')}. {more}"


def _column(difference: Difference) -> str:
    """The column's name on the source; of a column that only the target has, its name there."""
    column = difference.source or difference.target
    return column.name if column is not None else difference.finding.column or ""


def _target(difference: Difference) -> ColumnModel:
    assert difference.target is not None, difference.finding.kind
    return difference.target


def _is_narrowed(difference: Difference) -> bool:
    """Whether a key's rows are found again by what a cast that may refuse them makes of their values."""
    was = difference.source
    return was is not None and narrows_integer(was.type, _target(difference).type)


def _is_type(allowed: str, column: ColumnModel) -> bool:
    """Whether the column has the type that the file writes, which may leave the schema out."""
    schema, *rest = sql_type(allowed)
    there, *its = sql_type(column.type.text)
    return rest == its and schema in ("", there)
