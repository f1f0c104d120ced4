"""The schema gate in the journal: verdicts, what came before them, who was told, and what the metrics count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, VerdictStatus, stopped
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("schema_status")

Fingerprints = tuple[str | None, str | None]
# What is recorded of a table: its status, findings, resolution, and the fingerprints of source and target.
Recorded = tuple[VerdictStatus, Sequence[SchemaFinding], str | None, Fingerprints]
GateResult = Literal["pass", "warning", "fail_safe", "fail_unsafe"]


@dataclass(frozen=True, slots=True)
class StatusRow:
    """The verdict that stands; times are aware datetimes. `since` is when the status became what it is, `notified_at`
    when somebody was told of all its mismatches: None while one is new."""

    status: VerdictStatus
    findings: tuple[SchemaFinding, ...]
    since: datetime
    checked_at: datetime
    resolution: str | None
    fingerprints: Fingerprints
    notified_at: datetime | None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A verdict with the findings that it had from `since` to `until`; None: it stands."""

    name: Name
    status: VerdictStatus
    findings: tuple[SchemaFinding, ...]
    since: datetime
    until: datetime | None
    resolution: str | None
    run: int


class SchemaJournal:
    """The verdicts of one pipeline over one session; whoever calls decides on transactions, and each call is all or
    nothing.

    Rows are locked in the order of their names, so bulk calls of several sessions do not wait for each other in a
    circle; in a transaction that records tables one by one that order is the caller's.
    """

    def __init__(self, conn: Session, pipeline: str):
        self.conn, self.pipeline = conn, pipeline

    def _statuses(self, query: str, args: Any) -> dict[Name, StatusRow]:
        with self.conn.cursor(row_factory=kwargs_row(_status)) as cursor:
            return dict(cursor.execute(_Q[query], args, prepare=True).fetchall())

    # --- verdicts -----------------------------------------------------------------------------------------------

    def statuses(self) -> dict[Name, StatusRow]:
        """The verdict on every table that was judged, in the order of their names."""
        return self._statuses("statuses", {"pipeline": self.pipeline})

    def mismatches(self) -> dict[Name, StatusRow]:
        """Those of them that stop a table."""
        return self._statuses("mismatches", {"pipeline": self.pipeline})

    def record(
        self,
        name: Name,
        status: VerdictStatus,
        findings: Sequence[SchemaFinding],
        *,
        resolution: str | None = None,
        fingerprints: Fingerprints = (None, None),
    ) -> bool:
        """Writes a table's verdict; returns whether it is another one than before. See `record_many`."""
        return bool(self.record_many({name: (status, findings, resolution, fingerprints)}))

    def record_many(self, verdicts: Mapping[Name, Recorded]) -> set[Name]:
        """Writes verdicts in a fixed number of queries, and only those that differ from what is recorded; returns the
        names of those with another status or other findings.

        Their history goes on, findings that are new are counted, and new mismatches wait to be announced.
        """
        known = self._statuses("statuses_of", self._named(verdicts))
        now = {n: verdicts[n] for n in sorted(verdicts) if n not in known or _differs(known[n], verdicts[n])}
        if not now:
            return set()
        with self.conn.transaction():
            inserted = {(schema, name) for schema, name in self.conn.execute(_Q["insert"], self._columns(now))}
            left = {n: verdict for n, verdict in now.items() if n not in inserted}
            # Again, now that nobody else can change them: what counts as new is told from what is really replaced.
            before = self._statuses("lock", self._named(left))
            old = {n: before[n].findings if n in before else () for n in now}
            new = {n: _new(old[n], findings) for n, (_, findings, _, _) in now.items()}
            if left:
                are_new = [any(f.severity == "mismatch" for f in new[n]) for n in left]
                self.conn.execute(_Q["update"], self._columns(left) | {"are_new": are_new})
            changed = inserted | {n for n, row in before.items() if _verdict(row) != _verdict(now[n])}
            if changed:
                self.conn.execute(_Q["close"], self._named(sorted(changed)))
                self.conn.execute(_Q["open"], self._named(sorted(changed)))
                self._count(
                    [(n, "mismatches", f.metric or f.kind, 1.0) for n in sorted(changed) for f in new[n]]
                    + [
                        (n, "tables_blocked", why, 1.0)
                        for n in sorted(changed)
                        for why in sorted(_reasons(now[n][1]) - _reasons(old[n]))
                    ]
                )
        return changed

    def touch(self, names: Collection[Name]) -> None:
        """Says that these were looked at again, and nothing has changed."""
        self.conn.execute(_Q["touch"], self._named(names))

    def forget(self, *names: Name) -> None:
        """There is no verdict on these tables any more; what there was stays in the history."""
        self.conn.execute(_Q["forget"], self._named(names))

    def forget_all(self) -> None:
        """Forgets the pipeline: verdicts, history, counters, and what was shown."""
        for name in ("purge_statuses", "purge_history", "purge_counters", "purge_shown"):
            self.conn.execute(_Q[name], {"pipeline": self.pipeline})

    def history(self, name: Name | None = None) -> list[HistoryRow]:
        """Every verdict on one table, or on all, first to last; a later one has another status or other findings."""
        schema, table = name or (None, None)
        with self.conn.cursor(row_factory=kwargs_row(_history)) as cursor:
            return cursor.execute(
                _Q["history"], {"pipeline": self.pipeline, "schema": schema, "name": table}
            ).fetchall()

    # --- who was told -------------------------------------------------------------------------------------------

    def claim_new(self, among: Collection[Name]) -> list[Name]:
        """Which of these have mismatches that nobody was told of, in the order of their names; now somebody was.

        Whoever asks, and however many at once, each is returned to one of them.
        """
        return sorted((schema, name) for schema, name in self.conn.execute(_Q["claim_new"], self._named(among)))

    def shown(self, who: str, digest: str) -> bool:
        """Whether this digest is what `who` was shown last; from here on it is."""
        args = {"pipeline": self.pipeline, "who": who, "digest": digest}
        if self.conn.execute(_Q["show"], args).fetchone() is None:
            return True
        self.conn.execute(_Q["forget_shown"], args)
        return False

    def shown_last(self, who: str) -> str | None:
        """The digest that `who` was shown last."""
        row = self.conn.execute(_Q["shown_last"], [self.pipeline, who]).fetchone()
        return None if row is None else str(row[0])

    # --- counters -----------------------------------------------------------------------------------------------

    def count(self, name: Name | None, counter: str, label: str, by: float = 1) -> None:
        """Adds to a counter of a table, or of the pipeline (None); waits for nobody else who counts.

        `rows_skipped` has the labels column_mismatch, cast_error and constraint_violation; the other counters are kept
        by `record_many` and `validated`.
        """
        self._count([(name, counter, label, by)])

    def validated(self, result: GateResult, seconds: float) -> None:
        """Counts a validation of the pipeline and the time that it took."""
        self._count([(None, "validations", result, 1.0), (None, "validation_seconds", "", seconds)])
        self.fold()

    def fold(self) -> None:
        """What was counted in many rows into few. Whoever counts again and again does it now and then."""
        self.conn.execute(_Q["fold"], {"pipeline": self.pipeline})

    def counters(self) -> dict[tuple[Name | None, str, str], float]:
        """(table or None, counter, label) → how much was counted since the pipeline was first set up."""
        return {
            ((schema, name) if schema is not None else None, counter, label): value
            for schema, name, counter, label, value in self.conn.execute(_Q["counters"], {"pipeline": self.pipeline})
        }

    def _count(self, rows: Sequence[tuple[Name | None, str, str, float]]) -> None:
        if rows:
            args = {
                "pipeline": self.pipeline,
                "schemas": [name[0] if name else None for name, _, _, _ in rows],
                "names": [name[1] if name else None for name, _, _, _ in rows],
                "counters": [counter for _, counter, _, _ in rows],
                "labels": [label for _, _, label, _ in rows],
                "values": [float(by) for _, _, _, by in rows],
            }
            self.conn.execute(_Q["count"], args)

    def _columns(self, verdicts: Mapping[Name, Recorded]) -> dict[str, Any]:
        return self._named(verdicts) | {
            "statuses": [status for status, _, _, _ in verdicts.values()],
            "findings": [Jsonb([f.to_json() for f in findings]) for _, findings, _, _ in verdicts.values()],
            "resolutions": [resolution for _, _, resolution, _ in verdicts.values()],
            "sources": [source for _, _, _, (source, _) in verdicts.values()],
            "targets": [target for _, _, _, (_, target) in verdicts.values()],
        }

    def _named(self, names: Iterable[Name]) -> dict[str, Any]:
        schemas_and_names = list(names)
        return {
            "pipeline": self.pipeline,
            "schemas": [schema for schema, _ in schemas_and_names],
            "names": [name for _, name in schemas_and_names],
        }


def _status(
    *,
    schema_name: str,
    table_name: str,
    findings: Sequence[Any],
    source_fingerprint: str | None,
    target_fingerprint: str | None,
    **columns: Any,
) -> tuple[Name, StatusRow]:
    prints = (source_fingerprint, target_fingerprint)
    return (schema_name, table_name), StatusRow(findings=_findings(findings), fingerprints=prints, **columns)


def _history(*, schema_name: str, table_name: str, findings: Sequence[Any], **columns: Any) -> HistoryRow:
    return HistoryRow(name=(schema_name, table_name), findings=_findings(findings), **columns)


def _findings(values: Sequence[Any]) -> tuple[SchemaFinding, ...]:
    """As recorded; those of older versions are plain sentences."""
    return tuple(stopped(v) if isinstance(v, str) else SchemaFinding.from_json(v) for v in values)


def _verdict(of: StatusRow | Recorded) -> tuple[VerdictStatus, set[SchemaFinding]]:
    """What makes two verdicts the same one; in which order the findings were found does not matter."""
    status, findings = (of.status, of.findings) if isinstance(of, StatusRow) else of[:2]
    # Their JSON always has the metric.
    return status, {f if f.metric else replace(f, metric=f.kind) for f in findings}


def _differs(row: StatusRow, now: Recorded) -> bool:
    return _verdict(row) != _verdict(now) or (row.resolution, row.fingerprints) != now[2:]


def _new(before: Sequence[SchemaFinding], now: Sequence[SchemaFinding]) -> list[SchemaFinding]:
    """The findings that were not there before; one whose fix or choices alone are others is not new."""
    was = {(f.kind, f.severity, f.column, f.what) for f in before}
    return [f for f in now if (f.kind, f.severity, f.column, f.what) not in was]


def _reasons(findings: Sequence[SchemaFinding]) -> set[str]:
    """Why a table is blocked; nothing where it is not."""
    return {f.reason for f in findings if f.severity == "mismatch"}
