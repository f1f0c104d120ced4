"""The command line: one table of commands, for `pgddl` and for `airflow pgddl`.

Airflow imports this module at every `airflow` call, so nothing but the standard library is imported up here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgddl.cli_commands import (
    cancel,
    check,
    ddl,
    demo,
    metrics,
    pack,
    pause,
    plan,
    print_json,
    reconfigure,
    reset,
    resume,
    run,
    schema,
    status,
    way_back,
)
from airflow_provider_pgddl.engine.job import stage_names
from airflow_provider_pgddl.engine.schema import flags

EXIT_CODES = (
    "exit codes: 0 done, 1 failed, 2 bad usage or bad pipeline file, 3 blocked by a mismatch or by DDL that waits for "
    "a person, 4 refused before it was begun, 5 worth retrying"
)


def named_stages(text: str) -> tuple[str, ...]:
    """One stage or several, as argparse takes them."""
    try:
        return stage_names.named_stages(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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

ADMIN_SQL = Option(
    ("--admin-sql",),
    {"action": "store_true", "help": "print what an administrator runs once for a role that is no superuser"},
)
UNDO = Option(("--undo",), {"action": "store_true", "help": "with --admin-sql: what takes it away again"})


POLICY = tuple(Option(names, settings) for names, settings in flags.OPTIONS)
SCHEMA = (
    Command(
        "validate",
        "whether rows of the source fit into the target, table by table; needs no setup and changes nothing",
        (PIPELINE, TABLES, *POLICY, JSON),
        schema("validate"),
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
        schema("diff"),
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
        schema("sync"),
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
        ddl("listed"),
    ),
    Command("show", "all that is known of one event", (EVENT, PIPELINE, JSON), ddl("show")),
    Command(
        "approve",
        "let events through that wait for approval",
        (
            Option(("ids",), {"nargs": "*", "type": int, "metavar": "ID", "help": "these events"}),
            PIPELINE,
            Option(("--all",), {"action": "store_true", "help": "every event that waits for approval"}),
            JSON,
        ),
        ddl("approve"),
    ),
    Command(
        "retry",
        "apply failed events again, in commit order, up to the first that fails",
        (Option(("id",), {"nargs": "?", "type": int, "metavar": "ID", "help": "only this one"}), PIPELINE, JSON),
        ddl("retry"),
    ),
    Command("resolve", "say that an event was done by hand on the target", (EVENT, PIPELINE, NOTE, JSON),
            ddl("resolve")),
    Command("skip", "leave an event out for good", (EVENT, PIPELINE, NOTE, JSON), ddl("skip")),
    Command("enable", "let the pipeline follow DDL again", (PIPELINE, JSON), ddl("enable")),
    Command("disable", "leave out all DDL from here on, until `enable`", (PIPELINE, JSON), ddl("disable")),
    Command("preview", "which schemas, tables and commands the scope matches now", (PIPELINE, JSON),
            ddl("preview")),
    Command("exceptions", "what went wrong while capturing on the source", (PIPELINE, ALL, JSON),
            ddl("exceptions")),
    Command("resolve-exception", "say that an exception was looked after", (EVENT, PIPELINE, NOTE, JSON),
            ddl("resolve_exception")),
    Command(
        "killed",
        "sessions that were cancelled or terminated because they stood in the way, and not reported yet",
        (PIPELINE, ALL, Option(("--report",), {"action": "store_true", "help": "mark them as reported"}), JSON),
        ddl("killed"),
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
            ADMIN_SQL,
            UNDO,
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
        "run one stage, or several in one Spark application, through spark-submit",
        (
            Option(
                ("stages",),
                {
                    "type": named_stages,
                    "metavar": "STAGES",
                    "help": f"{', '.join(stage_names.ALL_STAGES)}; or several: setup..replay, verify,swap",
                },
            ),
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
                ("--reconfigure",),
                {"action": "store_true", "help": "of setup: take up a changed file, as `pgddl reconfigure` does"},
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
        "reconfigure",
        "take up a changed file without a reset: tables, DDL rules, parts of rows, servers that have moved",
        (
            PIPELINE,
            Option(("--dry-run",), {"action": "store_true", "help": "only say what would be done"}),
            Option(
                ("--drop",),
                {
                    "action": "store_true",
                    "help": "drop the target's tables that the pipeline made and that go out of it",
                },
            ),
            JSON,
        ),
        reconfigure,
    ),
    Command(
        "reset",
        "take a pipeline away (capture, fence, unfinished copies, journal), or start some tables over",
        (
            PIPELINE,
            TABLES,
            Option(
                ("--source-gone",),
                {
                    "action": "store_true",
                    "help": "the database that captures is gone for good: go on though the source is not that one",
                },
            ),
            Option(("-y", "--yes"), {"action": "store_true", "help": "do not ask"}),
            JSON,
        ),
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
        print_json(failure.to_json())
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


def _version() -> str:
    from airflow_provider_pgddl import __version__

    return f"pgddl {__version__}"


if __name__ == "__main__":
    sys.exit(main())
