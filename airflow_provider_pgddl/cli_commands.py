"""What each command of the shell does: asks the engine, and prints what it answers.

Airflow imports this module at every `airflow` call, so nothing but the standard library is imported up here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgddl.engine.schema import flags

if TYPE_CHECKING:
    from airflow_provider_pgddl.cli_ddl import Answer, Asked
    from airflow_provider_pgddl.engine.pipeline.model import Pipeline


def check(args: argparse.Namespace) -> int:
    """Preflight and the state of our migrations; changes nothing."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE, EXIT_REFUSED, UsageError

    pipeline, source, target = opened(args)
    if args.admin_sql:
        from airflow_provider_pgddl.engine.commands.admin_sql import admin_sql

        script = admin_sql(pipeline, source, target, undo=args.undo)
        if args.json:
            print_json({"sql": script})
        else:
            print(script, end="")
        return EXIT_DONE
    if args.undo:
        raise UsageError("--undo is for --admin-sql", todo="pgddl check --admin-sql --undo")
    found = _plain(stages.check(pipeline, source, target))
    if getattr(args, "in_airflow", False):
        found["findings"] += _without_triggerer()
    if args.executors:
        found["findings"] += _asked_of_executors(args)
    if args.json:
        print_json(found)
    else:
        if found["finished_at"]:
            print(f"finished since {found['finished_at']}; this is about its next run (pgddl run setup --again):")
        for finding in found["findings"]:
            about = f"{finding['table']}: " if finding.get("table") else ""
            print(f"{finding['severity']} ({finding['where']}): {about}{finding['what']}")
            for line in (finding.get("fix") or "").splitlines():
                print(f"  {line}")
        for one in found["migrations"]:
            counts = ", ".join(f"{len(one[state])} {state}" for state in ("applied", "pending", "changed"))
            print(f"migrations, {one['set']} on the {one['where']}: {counts}")
        severities = [finding["severity"] for finding in found["findings"]]
        print(", ".join(_count(severities.count(severity), severity) for severity in ("error", "warning")))
    refused = any(finding["severity"] == "error" for finding in found["findings"])
    return EXIT_REFUSED if refused else EXIT_DONE


def _asked_of_executors(args: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    from airflow_provider_pgddl import cli_run

    return cli_run.check_executors(args, pipeline_of(args), lookup())


def _without_triggerer() -> list[dict[str, Any]]:
    """A gate that defers would wait for ever."""
    from airflow.jobs.job import most_recent_job
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_pgddl.engine.preflight.findings import Finding

    try:
        triggerer = most_recent_job("TriggererJob")
        if triggerer is not None and triggerer.is_alive():
            return []
        what = "Airflow has no triggerer that is alive"
    except SQLAlchemyError as error:
        what = f"whether Airflow has a triggerer is not known, its database cannot be asked ({type(error).__name__})"
    what += ": the gate of `lifecycle` and `follow` waits in one"
    fix = """airflow triggerer  # or let the gate wait on workers: gate={"mode": "reschedule"}"""
    return [Finding("warning", "triggerer", "pipeline", None, what, fix).to_json()]


def plan(args: argparse.Namespace) -> int:
    """Every statement that the stages would run, with its locks; changes nothing."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.commands.plan import lines
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = stages.plan(*opened(args))
    if args.json:
        print_json(found)
    else:
        print("\n".join(lines(found)))
    return EXIT_DONE


def way_back(args: argparse.Namespace) -> int:
    """The pipeline file of the way back."""
    from airflow_provider_pgddl.engine.commands.way_back import way_back_file
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = way_back_file(*opened(args))
    if args.json:
        print_json(found)
    else:
        import yaml

        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
    return EXIT_DONE


def status(args: argparse.Namespace) -> int:
    """What the journal knows of this pipeline."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = _plain(stages.status(*opened(args)))
    if args.json:
        print_json(found)
    else:
        _print_tree(found)
    return EXIT_DONE


def reconfigure(args: argparse.Namespace) -> int:
    """Takes a changed file up; with --dry-run only says what that would do."""
    from airflow_provider_pgddl import cli_run
    from airflow_provider_pgddl.engine.commands.reconfigure import look_at, shown
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    planned = look_at(*opened(args), drop=args.drop)
    if args.dry_run:
        found, code = _plain(planned.to_json()), EXIT_DONE
    else:
        result = cli_run.here(args, pipeline_of(args), lookup(), "setup", reconfigure=True, drop=args.drop)
        found, code = _plain(result.to_json()), result.exit_code
    if args.json:
        print_json(found)
    elif args.dry_run:
        for one in found["changes"]:
            print(f"{one['key']}: {shown(one['before'])} → {shown(one['after'])} ({one['how']})")
        for one in found["tables"]:
            print(f"{one['table']}: {one['does']}")
        if not found["changes"]:
            print("nothing has changed" if not found["under_way"] else "what was taken up before is to be done still")
    return code


def reset(args: argparse.Namespace) -> int:
    """Take capture, fence, unfinished copies and journal away, or start tables over; live tables keep their rows."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE, UsageError
    from airflow_provider_pgddl.engine.job.file import names

    tables = names(args.tables)
    pipeline, source, target = opened(args)
    what = ", ".join(tables) if tables else f"the whole pipeline {pipeline.pipeline}"
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"reset of {what} needs a confirmation", todo="give --yes")
        print(f"Drop capture, unfinished copies and recorded progress of {what}? [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() != "y":
            raise UsageError("not confirmed; nothing has been changed")
    done = _plain(stages.reset(pipeline, source, target, tables, source_gone=args.source_gone))
    if args.json:
        print_json(done)
    else:
        _print_tree(done)
    return EXIT_DONE


def pause(args: argparse.Namespace) -> int:
    """Holds the pipeline's runs at their next border."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = opened(args)
    return _told(args, stages.pause(pipeline, target, args.reason))


def resume(args: argparse.Namespace) -> int:
    """Lets paused runs go on."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = opened(args)
    return _told(args, stages.resume(pipeline, target))


def cancel(args: argparse.Namespace) -> int:
    """Ends the pipeline's runs at their next border."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = opened(args)
    return _told(args, stages.cancel(pipeline, target))


def _told(args: argparse.Namespace, found: Mapping[str, Any]) -> int:
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = _plain(found)
    (print_json if args.json else _print_tree)(found)
    return EXIT_DONE


def run(args: argparse.Namespace) -> int:
    """One stage, through spark-submit, with the same job file that an operator writes."""
    from airflow_provider_pgddl import cli_run

    return cli_run.run(args, pipeline_of(args), lookup())


def pack(args: argparse.Namespace) -> int:
    """What executors need beside Python, as an archive that travels with a job."""
    from airflow_provider_pgddl import cli_run

    return cli_run.pack(args)


def demo(args: argparse.Namespace) -> int:
    """Two embedded clusters, a shop with busy writers, migrated and rewritten through Airflow."""
    from airflow_provider_pgddl.engine.errors import UsageError

    try:
        from airflow_provider_pgddl.demo import run as demo_run
    except ImportError as error:
        raise UsageError(
            f"the demo needs its embedded Postgres ({error.name} is not installed)",
            todo="pip install 'airflow-provider-pgddl[demo]'",
        ) from None
    return int(demo_run.main(["--json"] if args.json else []) or 0)


def metrics(args: argparse.Namespace) -> int:
    """Prometheus text of what the journal knows."""
    from airflow_provider_pgddl.engine.commands import metrics as prometheus
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    print(prometheus.text(*opened(args)), end="")
    return EXIT_DONE


def ddl(name: str) -> Callable[[argparse.Namespace], int]:
    """A function of `cli_ddl` as a command; exit code 3 says that a person is still waited for."""

    def run(args: argparse.Namespace) -> int:
        from airflow_provider_pgddl import cli_ddl

        return _answered(getattr(cli_ddl, name), args)

    return run


def schema(name: str) -> Callable[[argparse.Namespace], int]:
    """A function of `cli_schema` as a command; exit code 3 says that a mismatch stands."""

    def run(args: argparse.Namespace) -> int:
        from airflow_provider_pgddl import cli_schema

        return _answered(getattr(cli_schema, name), args)

    return run


def _answered(ask: Callable[[Asked], Answer], args: argparse.Namespace) -> int:
    from airflow_provider_pgddl.cli_ddl import Asked

    answer = ask(Asked(*opened(args), args))
    if args.json:
        print_json(answer.found)
    else:
        print("\n".join(answer.lines()))
    return answer.exit_code


def opened(args: argparse.Namespace) -> tuple[Pipeline, str, str]:
    """The pipeline and the connection strings of its source and target (in place: the same)."""
    from airflow_provider_pgddl.connections import secrets

    pipeline = pipeline_of(args)
    found = secrets(pipeline, lookup(), os.environ)
    return pipeline, found["source"], found.get("target", found["source"])


def pipeline_of(args: argparse.Namespace) -> Pipeline:
    """The pipeline file, with the flags of a command that takes the policy's."""
    from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

    pipeline = load_pipeline(Path(args.pipeline))
    return load_pipeline(flags.merged(pipeline.to_json(), args)) if hasattr(args, "force") else pipeline


def lookup() -> Callable[[str], Any]:
    """Airflow is imported only where a pipeline names one of its connections."""
    from airflow_provider_pgddl.connections import lookup_in_shell

    return lookup_in_shell


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def _print_tree(value: Mapping[str, Any], indent: str = "") -> None:
    """Nested mappings as indented lines; a list of mappings as one line each."""
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            print(f"{indent}{key}:")
            _print_tree(inner, indent + "  ")
        elif isinstance(inner, list) and inner:
            print(f"{indent}{key}:")
            for entry in inner:
                shown = ", ".join(f"{k} {v}" for k, v in entry.items()) if isinstance(entry, Mapping) else entry
                print(f"{indent}  {shown}")
        else:
            print(f"{indent}{key}: {'-' if inner in (None, {}, []) else inner}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
