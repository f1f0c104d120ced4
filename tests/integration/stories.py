"""Stories of schema evolution: a pipeline, an application that goes on writing, and everybody who looks at both."""

from __future__ import annotations

import argparse
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psycopg
import pytest
import yaml
from psycopg import sql

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema import flags
from airflow_provider_pgddl.engine.schema.report import box, lines
from airflow_provider_pgddl.engine.schema.verdict import OR, SchemaFinding, TableReport
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one
from tests.integration.shells import SchemaShell

Make = Callable[..., Lifecycle]

OFF: dict[str, Any] = {"capture": {"ddl": "off"}}
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "64kB", "workers": 1}}
LEFT_OUT = "SET pgddl.skip = on; "
# How the source's DDL comes to be followed by nobody: it is not captured at all, or this statement was left out.
UNFOLLOWED = pytest.mark.parametrize("unfollowed", ["capture_off", "statement_left_out"])

# What some differences are called.
ADDED = "Source has new column 'phone_number' not in target"
REQUIRED = "Target has new column 'created_by_system' (NOT NULL, no DEFAULT)"
LOSSY = "Type mismatch on public.products.price: numeric(10,2) on the source, integer on the target"


# --- an application -------------------------------------------------------------------------------------------------


class Application:
    """Runs its statements again and again, a round a transaction; `%(n)s` counts rounds and `%(phase)s` says before,
    during or after the mismatch."""

    def __init__(self, dsn: str, *statements: str) -> None:
        self._dsn, self._statements = dsn, statements
        self._between, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._failure: BaseException | None = None
        self.phase, self.rounds = "before", 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def change(self, *statements: str) -> None:
        """What it runs from here on, in the phase `during`; for a `with between()` block."""
        self._statements, self.phase = statements, "during"

    @contextmanager
    def between(self) -> Iterator[None]:
        """Between two of its rounds: as with a new version of an application that comes with its migration."""
        with self._between:
            yield

    def more(self, rounds: int = 12) -> int:
        """The number of a round that is committed, so many after the present one."""
        enough = self.rounds + rounds
        wait_until(lambda: self._failure is not None or self.rounds >= enough)
        if self._failure is not None:
            raise self._failure
        return enough

    def _write(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                while not self._over.is_set():
                    with self._between, conn.transaction():
                        for statement in self._statements:
                            conn.execute(statement.encode(), {"n": self.rounds + 1, "phase": self.phase})
                    self.rounds += 1
                    self._over.wait(0.02)  # an application, not a load test
        except psycopg.Error as error:
            self._failure = error


def writes(table: str, values: str = "") -> tuple[str, ...]:
    """A round: a row, and a change and a delete of earlier ones; `values` are those of columns beside id and phase, as
    in ``name = 'x'; age = 3``."""
    pairs = [value.strip().split(" = ") for value in values.split(";") if value]
    named, given = ("".join(f", {pair[n]}" for pair in pairs) for n in (0, 1))
    changed = "".join(f"{name} = {value}, " for name, value in pairs)
    return (
        f"INSERT INTO {table} (id, phase{named}) VALUES (1000 + %(n)s, %(phase)s{given})",
        f"UPDATE {table} SET {changed}phase = phase || '!' WHERE id = %(n)s %% 7 + 1",
        f"DELETE FROM {table} WHERE id = 1000 + %(n)s - 5 AND %(n)s %% 3 = 0",
    )


# --- a pipeline with everybody who looks at it ----------------------------------------------------------------------


class Story:
    """One pipeline from 16 to 18 with table `others`, which no mismatch is about, and an application that writes."""

    def __init__(self, move: Lifecycle, shell: SchemaShell, application: Application) -> None:
        self.move, self.shell, self.application = move, shell, application

    # What happens

    def on_source(self, *statements: str, then: Sequence[str] = ()) -> None:
        """DDL that nobody follows, and what the application writes from then on."""
        with self.application.between():
            left_out = "" if self.move.content.get("capture") == OFF["capture"] else LEFT_OUT
            do(self.move.source, *(left_out + statement for statement in statements))
            if then:
                self.application.change(*OTHERS, *then)
        self.application.phase = "during"
        self.application.more()

    def on_target(self, *statements: str) -> None:
        """What a person does there."""
        with self.application.between():
            do(self.move.target, *statements)
        self.application.phase = "during"
        self.application.more()

    def fix(self, report: TableReport, way: int = 0) -> None:
        """Runs the SQL of the report as it stands there; where there are several ways, this one."""
        for finding in report.findings:
            ways = "\n".join(finding.fix).split(OR)
            if finding.severity == "mismatch":
                do(self.move.target, *ways[way if len(ways) > 1 else 0].strip().split("\n"))
        self.application.phase = "after"

    def take(self, flag: str) -> None:
        """Puts into the pipeline file what a flag of the command line asks for."""
        parser = argparse.ArgumentParser()
        for names, settings in flags.OPTIONS:
            parser.add_argument(*names, **settings)
        args = parser.parse_args(shlex.split(flag))
        content = flags.merged(load_pipeline(self.move.content).to_json(), args)
        del content["$origin"]
        self.move.content = content
        self.shell.file.write_text(yaml.safe_dump(self.move.content))
        self.application.phase = "after"

    # What is seen

    def gate(self) -> dict[str, TableReport]:
        move = self.move
        return {r.table: r for r in stages.gate(load_pipeline(move.content), move.source, move.target)}

    def poke(self, **settings: Any) -> bool:
        """What the sensor says; a task's context without a run."""
        from tests.dags.conftest import context  # noqa: I001 - before Airflow: gives it a home of its own
        from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

        sensor = PgddlSchemaSensor(task_id="gate", pipeline=str(self.shell.file), **settings)
        return sensor.poke(context())

    def closed(self, *, looked: bool = True, **errors: str) -> dict[str, TableReport]:
        """Everybody says that exactly these tables are stopped, and why, and the others go on; returns the reports.

        `looked`: also a gate that looks before any stage does."""
        before = {table: self.written(table, "during") for table in errors}
        wanted = {f"public.{table}": error for table, error in errors.items()}
        if looked:
            assert {t: r.to_json()["error"] for t, r in self.gate().items() if r.status == "mismatch"} == wanted
        written = self.application.more()
        result = self.move.run("replay")
        assert result.exit_code == 3
        blocked = {b["table"]: b["reason"].split("; ")[0] for b in result.blocked}
        assert blocked == wanted
        assert one(self.move.target, "SELECT max(id) FROM others") >= 1000 + written
        assert {table: self.written(table, "during") for table in errors} == before

        reports = self.gate()
        assert {t for t, r in reports.items() if r.status == "mismatch"} == set(wanted)
        code, validated = self.shell("validate")
        assert code == 3
        for told in (*(r.to_json() for r in reports.values()), *validated["tables"]):
            if told["table"] in wanted:
                assert (told["status"], told["error"]) == ("schema_mismatch", wanted[told["table"]])
                assert told["sync_stopped_at"] == told["since"] is not None
                assert told["resolution"]
            else:
                assert (told["status"], told["error"], told["sync_stopped_at"]) == ("compatible", None, None)
        for table in errors:
            report = reports[f"public.{table}"]
            assert self.recorded(table) == (
                "mismatch",
                report.findings,
                report.resolution,
                64,
                64,
            )
            assert self.history(table)[-1] == ("mismatch", True, wanted[f"public.{table}"])
            assert (reports[f"public.{table}"].held_back or 0) > 0

        from airflow.sdk.exceptions import AirflowFailException

        assert self.poke() is False
        with pytest.raises(AirflowFailException, match="SYNC STOPPED") as raised:
            self.poke(on_mismatch="fail")
        assert all(table in str(raised.value) for table in wanted)
        return {table: reports[f"public.{table}"] for table in errors}

    def open(self, *tables: str, **statuses: str) -> dict[str, TableReport]:
        """Everybody says that all is well, and every row of these tables has arrived, whenever it was written."""
        code, validated = self.shell("validate")
        assert (code, validated["summary"]["mismatch"]) == (0, 0)
        assert self.poke() is True
        assert self.poke(on_mismatch="fail") is True
        assert [r for r in self.gate().values() if r.status == "mismatch"] == []
        self.application.phase = "after"
        self.application.more()
        result = self.move.run("replay")
        assert (result.exit_code, result.blocked) == (0, [])
        self.application.stop()
        self.move.run("replay")
        reports = self.gate()
        for table in (*tables, "others"):
            assert self.arrived(table) == {"before", "during", "after"}
            status = statuses.get(table, "compatible")
            assert reports[f"public.{table}"].to_json()["status"] == status
            findings = reports[f"public.{table}"].findings
            assert self.recorded(table) == (status, findings, None, 64, 64)
            assert self.history(table)[-1] == (status, True, None)
        return reports

    def arrived(self, table: str) -> set[str]:
        """The phases of the rows; both sides are equal, row by row, in all columns that both have."""
        here, there = columns(self.move.source, table), columns(self.move.target, table)
        common = {name: type_ for name, type_ in there.items() if name in here}
        ours, theirs = rows(self.move.source, table, common), rows(self.move.target, table, common)
        assert ours == theirs
        return {phase.rstrip("!") for (phase,) in rows(self.move.target, table, {"phase": "text"})}

    def written(self, table: str, phase: str) -> int:
        """Rows of that phase on the target."""
        return int(one(self.move.target, f"SELECT count(*) FROM {table} WHERE phase ~ '{phase}'"))

    def recorded(self, table: str) -> tuple[Any, ...]:
        """The verdict in the journal: status, findings, resolution, and how long both fingerprints are."""
        query = (
            "SELECT status, findings, resolution, length(source_fingerprint), length(target_fingerprint)"
            " FROM pgddl.schema_status WHERE table_name = %s"
        )
        ((status, findings, *others),) = self.move.journal(query, [table])
        return (status, tuple(map(SchemaFinding.from_json, findings)), *others)

    def history(self, table: str) -> list[tuple[str, bool, str | None]]:
        """Every verdict so far: status, whether it stands, and what is the matter."""
        query = (
            "SELECT status, until IS NULL, jsonb_path_query_first(findings, '$[*] ? (@.severity == \"mismatch\").what')"
            " #>> '{}' FROM pgddl.schema_status_history WHERE table_name = %s ORDER BY id"
        )
        return self.move.journal(query, [table])


OTHERS = writes("others")
MadeStory = Callable[..., Story]


def columns(dsn: str, table: str) -> dict[str, str]:
    query = (
        "SELECT coalesce(json_object_agg(attname, format_type(atttypid, atttypmod)), '{}') FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(one(dsn, query))


def rows(dsn: str, table: str, types: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """Every row, as text, of these columns, converted to these types by the server itself."""
    values = sql.SQL(", ").join(
        sql.SQL("CAST({} AS {})::text").format(sql.Identifier(name), sql.SQL(type_))
        for name, type_ in sorted(types.items())
    )
    with psycopg.connect(dsn, options="-c TimeZone=UTC") as conn:
        return conn.execute(sql.SQL("SELECT {} FROM {} ORDER BY id").format(values, sql.Identifier(table))).fetchall()


def said(report: TableReport) -> str:
    return "\n".join(lines(report, pipeline_file="shop.yaml"))


def boxed(report: TableReport) -> str:
    """What is in the box, without its frame; how many rows are held back is N."""
    inner = [line[2:-2].rstrip() for line in box(report, pipeline_file="shop.yaml").splitlines() if line[0] == "║"]
    assert len({len(line) for line in box(report).splitlines()}) == 1
    return re.sub(r"~[\d,]+", "~N", "\n".join(inner))


def text(indented: str) -> str:
    """A block of text as it is written in a test, without the test's own indentation."""
    return "\n".join(line[4:] for line in indented.strip("\n").splitlines()).rstrip()
