"""The command line: one table of commands, for `pgddl` and for `airflow pgddl`.

Airflow imports this module at every `airflow` call, so nothing but the standard library is imported up here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgddl.engine.schema import flags

if TYPE_CHECKING:
    from airflow_provider_pgddl.cli_ddl import Answer, Asked
    from airflow_provider_pgddl.engine.pipeline.model import Pipeline

STAGES = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup", "revert")
EXIT_CODES = (
    "exit codes: 0 done, 1 failed, 2 bad usage or bad pipeline file, 3 blocked by a mismatch or by DDL that waits for "
    "a person, 4 refused by preflight, 5 worth retrying"
)


@dataclass(frozen=True)
class Option:
    """An argument in argparse's terms; Airflow's `Arg` takes the same."""

    flags: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command: `run` gets the parsed arguments and returns the exit code."""

    name: str
    help: str
    options: tuple[Option, ...]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Group:
    """Commands under one word: `pgddl ddl list`."""

    name: str
    help: str
    commands: tuple[Command, ...]


PIPELINE = Option(("-p", "--pipeline"), {"required": True, "metavar": "FILE", "help": "the pipeline file"})
TABLES = Option(
    ("--tables",),
    {"nargs": "+", "metavar": "SCHEMA.TABLE", "default": None, "help": "only these tables, instead of all"},
)
JSON = Option(("--json",), {"action": "store_true", "help": "print one JSON object, and nothing else, on stdout"})
MASTER = Option(("--master",), {"default": None, "help": "Spark master (spark.master, else local[2])"})
CONF = Option(
    ("--conf",),
    {
        "action": "append", "default": [], "metavar": "KEY=VALUE",
        "help": "a setting of Spark, beside spark.conf of the pipeline file; a secret as ${NAME}, from the environment",
    },
)  # fmt: skip


def check(args: argparse.Namespace) -> int:
    """Preflight and the state of our migrations; changes nothing."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE, EXIT_REFUSED

    pipeline, source, target = _opened(args)
    found = _plain(stages.check(pipeline, source, target))
    if getattr(args, "in_airflow", False):
        found["findings"] += _without_triggerer()
    if args.executors:
        found["findings"] += _asked_of_executors(args)
    if args.json:
        _print_json(found)
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

    return cli_run.check_executors(args, _pipeline(args), _lookup())


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

    found = stages.plan(*_opened(args))
    if args.json:
        _print_json(found)
    else:
        print("\n".join(lines(found)))
    return EXIT_DONE


def way_back(args: argparse.Namespace) -> int:
    """The pipeline file of the way back."""
    from airflow_provider_pgddl.engine.commands.way_back import way_back_file
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = way_back_file(*_opened(args))
    if args.json:
        _print_json(found)
    else:
        import yaml

        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
    return EXIT_DONE


def status(args: argparse.Namespace) -> int:
    """What the journal knows of this pipeline."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = _plain(stages.status(*_opened(args)))
    if args.json:
        _print_json(found)
    else:
        _print_tree(found)
    return EXIT_DONE


def reset(args: argparse.Namespace) -> int:
    """Take capture, fence, unfinished copies and journal away, or start tables over; live tables keep their rows."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.errors import EXIT_DONE, UsageError
    from airflow_provider_pgddl.engine.job.file import names

    tables = names(args.tables)
    pipeline, source, target = _opened(args)
    what = ", ".join(tables) if tables else f"the whole pipeline {pipeline.pipeline}"
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"reset of {what} needs a confirmation", todo="give --yes")
        if input(f"Drop capture, unfinished copies and recorded progress of {what}? [y/N] ").strip().lower() != "y":
            raise UsageError("not confirmed; nothing has been changed")
    done = _plain(stages.reset(pipeline, source, target, tables))
    if args.json:
        _print_json(done)
    else:
        _print_tree(done)
    return EXIT_DONE


def pause(args: argparse.Namespace) -> int:
    """Holds the pipeline's runs at their next border."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = _opened(args)
    return _told(args, stages.pause(pipeline, target, args.reason))


def resume(args: argparse.Namespace) -> int:
    """Lets paused runs go on."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = _opened(args)
    return _told(args, stages.resume(pipeline, target))


def cancel(args: argparse.Namespace) -> int:
    """Ends the pipeline's runs at their next border."""
    from airflow_provider_pgddl.engine import stages

    pipeline, _, target = _opened(args)
    return _told(args, stages.cancel(pipeline, target))


def _told(args: argparse.Namespace, found: Mapping[str, Any]) -> int:
    from airflow_provider_pgddl.engine.errors import EXIT_DONE

    found = _plain(found)
    (_print_json if args.json else _print_tree)(found)
    return EXIT_DONE


def run(args: argparse.Namespace) -> int:
    """One stage, through spark-submit, with the same job file that an operator writes."""
    from airflow_provider_pgddl import cli_run

    return cli_run.run(args, _pipeline(args), _lookup())


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

    print(prometheus.text(*_opened(args)), end="")
    return EXIT_DONE


def _ddl(name: str) -> Callable[[argparse.Namespace], int]:
    """A function of `cli_ddl` as a command; exit code 3 says that a person is still waited for."""

    def run(args: argparse.Namespace) -> int:
        from airflow_provider_pgddl import cli_ddl

        return _answered(getattr(cli_ddl, name), args)

    return run


def _schema(name: str) -> Callable[[argparse.Namespace], int]:
    """A function of `cli_schema` as a command; exit code 3 says that a mismatch stands."""

    def run(args: argparse.Namespace) -> int:
        from airflow_provider_pgddl import cli_schema

        return _answered(getattr(cli_schema, name), args)

    return run


def _answered(ask: Callable[[Asked], Answer], args: argparse.Namespace) -> int:
    from airflow_provider_pgddl.cli_ddl import Asked

    answer = ask(Asked(*_opened(args), args))
    if args.json:
        _print_json(answer.found)
    else:
        print("\n".join(answer.lines()))
    return answer.exit_code


POLICY = tuple(Option(names, settings) for names, settings in flags.OPTIONS)
SCHEMA = (
    Command(
        "validate",
        "whether rows of the source fit into the target, table by table; needs no setup and changes nothing",
        (PIPELINE, TABLES, *POLICY, JSON),
        _schema("validate"),
    ),
    Command(
        "diff",
        "both sides of one table, column by column, and what puts them right",
        (
            PIPELINE,
            Option(("--table",), {"required": True, "metavar": "SCHEMA.TABLE", "help": "this table"}),
            *POLICY,
            JSON,
        ),
        _schema("diff"),
    ),
    Command(
        "sync",
        "align the target with the source",
        (
            PIPELINE,
            TABLES,
            Option(("--dry-run",), {"action": "store_true", "help": "only say what would be executed"}),
            Option(("--apply",), {"action": "store_true", "help": "execute it, each table in one transaction"}),
            *POLICY,
            JSON,
        ),
        _schema("sync"),
    ),
)

STATUSES = (
    "pending", "awaiting_approval", "applying", "applied", "skipped", "unhandled", "failed", "resolved",
)  # fmt: skip
EVENT = Option(("id",), {"type": int, "metavar": "ID", "help": "the event's number, as `list` shows it"})
NOTE = Option(("--note",), {"required": True, "metavar": "TEXT", "help": "why, for whoever reads it later"})
ALL = Option(("--all",), {"action": "store_true", "help": "also those that are over"})

DDL = (
    Command(
        "list",
        "captured DDL that is not done yet, and what to do about it",
        (
            PIPELINE,
            Option(
                ("--status",),
                {"nargs": "+", "choices": STATUSES, "default": None, "metavar": "STATUS",
                 "help": f"these instead: {', '.join(STATUSES)}"},
            ),
            ALL,
            JSON,
        ),
        _ddl("listed"),
    ),
    Command("show", "all that is known of one event", (EVENT, PIPELINE, JSON), _ddl("show")),
    Command(
        "approve",
        "let events through that wait for approval",
        (
            Option(("ids",), {"nargs": "*", "type": int, "metavar": "ID", "help": "these events"}),
            PIPELINE,
            Option(("--all",), {"action": "store_true", "help": "every event that waits for approval"}),
            JSON,
        ),
        _ddl("approve"),
    ),
    Command(
        "retry",
        "apply failed events again, in commit order, up to the first that fails",
        (Option(("id",), {"nargs": "?", "type": int, "metavar": "ID", "help": "only this one"}), PIPELINE, JSON),
        _ddl("retry"),
    ),
    Command("resolve", "say that an event was done by hand on the target", (EVENT, PIPELINE, NOTE, JSON),
            _ddl("resolve")),
    Command("skip", "leave an event out for good", (EVENT, PIPELINE, NOTE, JSON), _ddl("skip")),
    Command("enable", "let the pipeline follow DDL again", (PIPELINE, JSON), _ddl("enable")),
    Command("disable", "leave out all DDL from here on, until `enable`", (PIPELINE, JSON), _ddl("disable")),
    Command("preview", "which schemas, tables and commands the scope matches now", (PIPELINE, JSON),
            _ddl("preview")),
    Command("exceptions", "what went wrong while capturing on the source", (PIPELINE, ALL, JSON),
            _ddl("exceptions")),
    Command("resolve-exception", "say that an exception was looked after", (EVENT, PIPELINE, NOTE, JSON),
            _ddl("resolve_exception")),
    Command(
        "killed",
        "sessions that were cancelled or terminated because they stood in the way, and not reported yet",
        (PIPELINE, ALL, Option(("--report",), {"action": "store_true", "help": "mark them as reported"}), JSON),
        _ddl("killed"),
    ),
)  # fmt: skip

COMMANDS: tuple[Command | Group, ...] = (
    Command(
        "check",
        "preflight, and the state of pgddl's migrations; changes nothing",
        (
            PIPELINE,
            Option(
                ("--executors",),
                {"action": "store_true", "help": "ask Spark's executors too: Python, packages, both databases, clocks"},
            ),
            MASTER,
            CONF,
            JSON,
        ),
        check,
    ),
    Command(
        "pack",
        "pack what Spark's executors need beside Python, for spark.archives",
        (
            Option(
                ("-o", "--output"),
                {"required": True, "metavar": "FILE", "help": "the archive, such as env.tar.gz"},
            ),
            JSON,
        ),
        pack,
    ),
    Command(
        "run",
        "run one stage, through spark-submit",
        (
            Option(("stage",), {"choices": STAGES, "metavar": "STAGE", "help": ", ".join(STAGES)}),
            PIPELINE,
            TABLES,
            MASTER,
            CONF,
            Option(
                ("--dry-run",),
                {
                    "action": "store_true",
                    "help": "of swap: run it up to its commit, show every statement with its locks, and roll back",
                },
            ),
            Option(
                ("--again",),
                {"action": "store_true", "help": "of setup: begin the next run of a pipeline that is finished"},
            ),
            Option(
                ("--mend",),
                {"action": "store_true", "help": "of verify: read again what differs, and compare that once more"},
            ),
            *POLICY,
            JSON,
        ),
        run,
    ),
    Command(
        "plan", "every statement that the stages would run, with its locks; changes nothing", (PIPELINE, JSON), plan
    ),
    Command(
        "way-back", "the pipeline file that leads back from a cut-over (swap.way_back)", (PIPELINE, JSON), way_back
    ),
    Command("status", "what a pipeline has done and what is left", (PIPELINE, JSON), status),
    Command(
        "pause",
        "hold runs at their next border (chunk, window, stage), without a lock, until `resume`",
        (
            PIPELINE,
            Option(("--reason",), {"default": None, "metavar": "TEXT", "help": "shown in the status and task logs"}),
            JSON,
        ),
        pause,
    ),
    Command("resume", "let paused runs go on", (PIPELINE, JSON), resume),
    Command(
        "cancel",
        "end the runs under way at their next border; a run that begins later goes on from there",
        (PIPELINE, JSON),
        cancel,
    ),
    Command(
        "reset",
        "take a pipeline away (capture, fence, unfinished copies, journal), or start some tables over",
        (PIPELINE, TABLES, Option(("-y", "--yes"), {"action": "store_true", "help": "do not ask"}), JSON),
        reset,
    ),
    Group("schema", "the schema gate: whether both sides fit, how they differ, and what puts the target right", SCHEMA),
    Command("metrics", "metrics for Prometheus: verdicts, lag, what is left, what was counted", (PIPELINE,), metrics),
    Group("ddl", "DDL that follows from the source: look at it and decide", DDL),
    Command("demo", "a shop moved from Postgres 16 to 18 under its writers, then one table rewritten", (JSON,), demo),
)


def main(argv: Sequence[str] | None = None) -> int:
    """`pgddl`: returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="pgddl", description="Moves and reshapes live Postgres tables.", epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=_version())
    _add(parser, COMMANDS)
    args = parser.parse_args(argv)
    return call(args.call, args)


def _add(parser: argparse.ArgumentParser, commands: Sequence[Command | Group], above: str = "") -> None:
    subs = parser.add_subparsers(dest=f"{above}command", metavar="COMMAND", required=True)
    for command in commands:
        sub = subs.add_parser(command.name, help=command.help, description=command.help, epilog=EXIT_CODES)
        if isinstance(command, Group):
            _add(sub, command.commands, f"{command.name}_")
            continue
        for option in command.options:
            sub.add_argument(*option.flags, **option.settings)
        sub.set_defaults(call=command.run)


def each_command() -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command with the words by which it is called."""
    for command in COMMANDS:
        if isinstance(command, Group):
            yield from (((command.name, inner.name), inner) for inner in command.commands)
        else:
            yield (command.name,), command


def call(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; a user's mistake or a server's error becomes a message and its exit code."""
    import psycopg

    from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres

    try:
        return command(args)
    except PgddlError as error:
        failure = error
    except psycopg.Error as error:
        failure = from_postgres(error, doing=f"running pgddl {getattr(args, 'command', '')}".rstrip())
    except KeyboardInterrupt:
        print("pgddl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `pgddl status | head`: nobody reads on, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if getattr(args, "json", False):
        _print_json(failure.to_json())
    else:
        print(f"pgddl: {failure}", file=sys.stderr)
    return failure.exit_code


def airflow_commands() -> list[Any]:
    """The same commands as `airflow pgddl …`; for the provider's `cli` key."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    def action(command: Command) -> Callable[[argparse.Namespace], None]:
        def act(args: argparse.Namespace) -> None:
            args.in_airflow = True
            if code := call(command.run, args):
                raise SystemExit(code)

        return act

    def group(name: str, about: str, commands: Sequence[Command | Group]) -> Any:
        return GroupCommand(name=name, help=about, subcommands=tuple(made(command) for command in commands))

    def made(command: Command | Group) -> Any:
        if isinstance(command, Group):
            return group(command.name, command.help, command.commands)
        return ActionCommand(
            name=command.name,
            help=command.help,
            func=action(command),
            args=tuple(Arg(flags=option.flags, **option.settings) for option in command.options),
            epilog=EXIT_CODES,
        )

    return [group("pgddl", "Move and reshape live Postgres tables", COMMANDS)]


def _opened(args: argparse.Namespace) -> tuple[Pipeline, str, str]:
    """The pipeline and the connection strings of its source and target (in place: the same)."""
    from airflow_provider_pgddl.connections import secrets

    pipeline = _pipeline(args)
    found = secrets(pipeline, _lookup(), os.environ)
    return pipeline, found["source"], found.get("target", found["source"])


def _pipeline(args: argparse.Namespace) -> Pipeline:
    """The pipeline file, with the flags of a command that takes the policy's."""
    from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

    pipeline = load_pipeline(Path(args.pipeline))
    return load_pipeline(flags.merged(pipeline.to_json(), args)) if hasattr(args, "force") else pipeline


def _lookup() -> Callable[[str], Any]:
    """Airflow is imported only where a pipeline names one of its connections."""
    from airflow_provider_pgddl.connections import lookup_in_shell

    return lookup_in_shell


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _print_json(value: Any) -> None:
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


def _version() -> str:
    from airflow_provider_pgddl import __version__

    return f"pgddl {__version__}"


if __name__ == "__main__":
    sys.exit(main())
