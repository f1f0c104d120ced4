"""A pipeline's metrics as Prometheus reads them: what the journal counts, and how far rows and DDL have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.journal.ddl import STATUSES
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.schema import GateResult, SchemaJournal
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.schema.verdict import Reason
from airflow_provider_pgddl.engine.server.connect import connect

# Every table has these from the start, so that the first increase is seen. Our further kinds of findings are rare, and
# each would be a series more a table: they appear once they are counted.
_TYPES = (
    "source_added_column", "target_added_column", "type_mismatch", "source_removed_column", "safe_cast", "unsafe_cast",
)  # fmt: skip
_SKIPPED = ("column_mismatch", "cast_error", "constraint_violation")
_TABLE = ("pipeline", "schema", "table")


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a pipeline; nothing but its name before setup. `progress`: per table of the run, what status
    says; `matches`: per table that was judged, or that DDL stops, whether its rows go on; `lag`, `retained` (WAL, in
    bytes) and `longest_wait` (seconds): as status says it, None where there is none; `held`: by what runs are."""

    pipeline: str
    progress: Mapping[Name, Mapping[str, Any]] = field(default_factory=dict)
    matches: Mapping[Name, bool] = field(default_factory=dict)
    counters: Mapping[tuple[Name | None, str, str], float] = field(default_factory=dict)
    ddl_events: Mapping[str, int] = field(default_factory=dict)
    lag: Mapping[str, float] | None = None
    retained: int | None = None
    longest_wait: float | None = None
    held: Mapping[str, bool] = field(default_factory=dict)
    verify_needed: bool = False

    def by_table(self, counter: str, labels: Iterable[str]) -> dict[tuple[Name, str], float]:
        """(table, label) → count: of every table these labels, and what else was counted."""
        found = dict.fromkeys(((name, label) for name in self.progress for label in labels), 0.0)
        found |= {(t, label): n for (t, name, label), n in self.counters.items() if name == counter and t is not None}
        return dict(sorted(found.items()))

    def in_all(self, counter: str, labels: Iterable[str]) -> dict[str, float]:
        """Label → count over all tables, and what was counted for the pipeline itself."""
        found = dict.fromkeys(labels, 0.0)
        for (_, name, label), n in self.counters.items():
            if name == counter:
                found[label] = found.get(label, 0.0) + n
        return found


class _Metrics(Collector):
    def __init__(self, known: _Known):
        self.known = known

    def collect(self) -> Iterator[Metric]:
        for family in _FAMILIES:
            yield family(self.known)


def text(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> str:
    """Prometheus' text exposition format; every name begins with `pgddl_`, every series has the label `pipeline`.

    Counters begin with the pipeline's first setup and end when it is reset. Unreachable where a server does not answer.
    """
    return generate_latest(_Metrics(_read(pipeline, source_dsn, target_dsn))).decode()


def _read(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> _Known:
    name = pipeline.pipeline
    now = status(pipeline, source_dsn, target_dsn)
    if now["state"] == "not set up":
        return _Known(name)
    with connect(target_dsn, purpose="metrics", pipeline=name) as target:
        tables = Journal(target, name).tables.of(now["run"])
        schemas = SchemaJournal(target, name)
        verdicts, counters = schemas.statuses(), schemas.counters()
    blocked = now["mismatches"]
    # One that came or went between the two reads is left for the next time.
    progress = {(t.schema, t.name): now["tables"][t.qualified] for t in tables if t.qualified in now["tables"]}
    # A table may also wait behind DDL, which has no verdict; it may be one that this DDL would have made.
    names = {".".join(t): t for t in (*verdicts, *progress)}
    stopped = {t for t, row in verdicts.items() if row.status == "mismatch" and now["state"] != "finished"}
    stopped |= {names.get(table) or _split(table) for table in blocked}
    matches = {t: t not in stopped for t in sorted({*verdicts, *stopped})}
    waited = now["longest_wait"]["ms"] / 1000 if now["longest_wait"] else None
    held = {"pause": now["control"]["paused_at"] is not None, "throttle": now["control"]["throttled"] is not None}
    events, lag, retained = now["ddl_events"], now["lag"], now["retained_wal_bytes"]
    needed = now["verify_needed"] is not None
    return _Known(name, progress, matches, counters, events, lag, retained, waited, held, needed)


def _split(name: str) -> Name:
    """Schema and name of what is told as `schema.name`; no schema of what is in none."""
    schema, _, table = name.rpartition(".")
    return schema, table


# --- one function a metric, in the order in which they are printed ----------------------------------------------------


def _schema_status(known: _Known) -> Metric:
    family = GaugeMetricFamily("pgddl_schema_status", "1: rows go on; 0: a mismatch blocks the table.", labels=_TABLE)
    for (schema, table), matches in known.matches.items():
        family.add_metric([known.pipeline, schema, table], int(matches))
    return family


def _mismatches(known: _Known) -> Metric:
    family = CounterMetricFamily(
        "pgddl_schema_mismatches", "Differences between source and target, by type.", labels=[*_TABLE, "type"]
    )
    for ((schema, table), kind), n in known.by_table("mismatches", _TYPES).items():
        family.add_metric([known.pipeline, schema, table, kind], n)
    return family


def _tables_blocked(known: _Known) -> Metric:
    family = CounterMetricFamily(
        "pgddl_tables_blocked_schema", "Times that a table was blocked, by reason.", labels=["pipeline", "reason"]
    )
    for reason, n in known.in_all("tables_blocked", get_args(Reason)).items():
        family.add_metric([known.pipeline, reason], n)
    return family


def _rows_skipped(known: _Known) -> Metric:
    family = CounterMetricFamily(
        "pgddl_rows_skipped_schema",
        "Rows written without a column that is left out (column_mismatch), or refused by the target, which wait.",
        labels=[*_TABLE, "reason"],
    )
    for ((schema, table), reason), n in known.by_table("rows_skipped", _SKIPPED).items():
        family.add_metric([known.pipeline, schema, table, reason], n)
    return family


def _validations(known: _Known) -> Metric:
    family = CounterMetricFamily(
        "pgddl_schema_validations", "Validations of the pipeline's schemas, by result.", labels=["pipeline", "result"]
    )
    for result, n in known.in_all("validations", get_args(GateResult)).items():
        family.add_metric([known.pipeline, result], n)
    return family


def _validation_duration(known: _Known) -> Metric:
    family = SummaryMetricFamily(
        "pgddl_schema_validation_duration_seconds", "How long validations took.", labels=["pipeline"]
    )
    count = sum(known.in_all("validations", ()).values())
    family.add_metric([known.pipeline], int(count), known.in_all("validation_seconds", [""])[""])
    return family


def _progress(name: str, documentation: str, key: str) -> Callable[[_Known], Metric]:
    def gauge(known: _Known) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=_TABLE)
        for (schema, table), progress in known.progress.items():
            family.add_metric([known.pipeline, schema, table], progress[key])
        return family

    return gauge


def _lag(name: str, documentation: str, key: str) -> Callable[[_Known], Metric]:
    def gauge(known: _Known) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["pipeline"])
        if known.lag is not None:
            family.add_metric([known.pipeline], known.lag[key])
        return family

    return gauge


def _retained_wal(known: _Known) -> Metric:
    family = GaugeMetricFamily(
        "pgddl_retained_wal_bytes", "WAL that the source keeps for a slot of ours.", labels=["pipeline"]
    )
    if known.retained is not None:
        family.add_metric([known.pipeline], known.retained)
    return family


def _longest_wait(known: _Known) -> Metric:
    family = GaugeMetricFamily(
        "pgddl_longest_wait_seconds",
        "Longest that writers may have waited for a lock of this run.",
        labels=["pipeline"],
    )
    if known.longest_wait is not None:
        family.add_metric([known.pipeline], known.longest_wait)
    return family


def _held(known: _Known) -> Metric:
    family = GaugeMetricFamily("pgddl_held", "1: runs hold at their next border.", labels=["pipeline", "by"])
    for by, holds in known.held.items():
        family.add_metric([known.pipeline, by], int(holds))
    return family


def _verify_needed(known: _Known) -> Metric:
    family = GaugeMetricFamily(
        "pgddl_verify_needed",
        "1: a failover has lost commits that were read, and nobody has compared since.",
        labels=["pipeline"],
    )
    family.add_metric([known.pipeline], int(known.verify_needed))
    return family


def _ddl_events(known: _Known) -> Metric:
    family = GaugeMetricFamily("pgddl_ddl_events", "The run's captured DDL, by status.", labels=["pipeline", "status"])
    for state in STATUSES:
        family.add_metric([known.pipeline, state], known.ddl_events.get(state, 0))
    return family


_FAMILIES: tuple[Callable[[_Known], Metric], ...] = (
    _schema_status,
    _mismatches,
    _tables_blocked,
    _rows_skipped,
    _validations,
    _validation_duration,
    _progress("pgddl_table_rows_pending", "Keys whose rows have not been read again yet.", "pending_keys"),
    _progress("pgddl_changes_in_log", "Changes on the source that no window has taken.", "changes_in_log"),
    _progress("pgddl_lag_keys", "Keys and changes that the target does not show yet: both of the above.", "lag_keys"),
    _lag("pgddl_lag_bytes", "WAL of the source since the last snapshot that the target has shown in full.", "bytes"),
    _lag("pgddl_lag_seconds", "Age of the last snapshot that the target has shown in full.", "seconds"),
    _retained_wal,
    _longest_wait,
    _held,
    _verify_needed,
    _progress("pgddl_chunks_left", "Chunks of the first copy that are not done.", "chunks_left"),
    _ddl_events,
)
