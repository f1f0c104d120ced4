"""A database of the pipeline file, and how its dsn is resolved. No message repeats a dsn: it may hold a secret."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import AfterValidator, Field

from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.pipeline.fields import Section, Text
from airflow_provider_pgddl.engine.secrets_in_text import SECRET_KEYWORDS, has_literal_password

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
COMMAND_TIMEOUT = 60  # seconds
_RENDERED = "${TEMPLATE}"


class LiteralSecret(ValueError):
    """What must stand nowhere but in the environment."""

    def __init__(self, keyword: str):
        super().__init__(
            f"a literal {keyword} in the file is refused; take it from the environment (dsn: ${{SHOP_DSN}}, or "
            f"{keyword}=${{SHOP_PASSWORD}} in it), from ~/.pgpass, or use conn_id"
        )


def _dsn_values(dsn: str) -> dict[str, str]:
    """A dsn's keywords; each `${VAR}` stands as `${VAR}` in its value, however the dsn quotes or escapes."""
    names = list(VARIABLE.finditer(dsn))
    marked, end = "", 0
    for number, found in enumerate(names):
        marked += dsn[end : found.start()] + f"pgddlvariable{number}x"
        end = found.end()
    marked += dsn[end:]
    try:
        values = conninfo_to_dict(marked)
    except psycopg.Error:
        # The server library's message repeats parts of the string.
        raise ValueError(
            "not a Postgres conninfo or URI; let ${VAR} stand for all of it, or for single values in it"
        ) from None
    return {
        keyword: re.sub(r"pgddlvariable(\d+)x", lambda mark: names[int(mark[1])][0], str(value))
        for keyword, value in values.items()
        if value is not None
    }


def _dsn(text: str) -> str:
    text = text.strip()
    if VARIABLE.fullmatch(text):
        return text
    if re.fullmatch(r"\$[A-Za-z_]\w*", text):
        raise ValueError("write the variable with braces, ${VAR}")
    for keyword, value in _dsn_values(text).items():
        if keyword in SECRET_KEYWORDS and not VARIABLE.fullmatch(value):
            raise LiteralSecret(keyword)
    return text


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if has_literal_password(" ".join(words)):
        raise LiteralSecret("password")
    return words


def without_templates(text: str) -> str:
    """A text in which every Airflow template stands as a variable."""
    return _TEMPLATE.sub(_RENDERED, text)


def literal_secrets(endpoint: Any) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of a database's keys as somebody wrote them, templates and mistakes included: of a secret
    that stands in any of them, and of what cannot be read, for nobody can tell what is in it."""
    for key, value in endpoint.items() if isinstance(endpoint, Mapping) else [("dsn", endpoint)]:
        if isinstance(value, list | tuple) and has_literal_password(without_templates(" ".join(map(str, value)))):
            yield key, str(LiteralSecret("password"))
        if not isinstance(value, str):
            continue
        shown = without_templates(value)
        try:
            if key in SECRET_KEYWORDS and not VARIABLE.fullmatch(shown):
                raise LiteralSecret(key)
            _dsn(shown)
        except LiteralSecret as error:
            yield key, str(error)
        except ValueError as error:
            if key == "dsn" and _RENDERED not in shown:
                yield key, str(error)


def _conn_id(text: str) -> str:
    if not re.fullmatch(r"[\w.\-]+", text):
        raise ValueError("expected the id of an Airflow connection; a conninfo or URI goes under dsn")
    return text


def _printed(command: Sequence[str], env: Mapping[str, str]) -> str:
    """What a command prints, without white space around it. UsageError or Retry where it prints nothing or fails; what
    it said is repeated nowhere, for that may be a secret."""
    try:
        done = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise UsageError(f"dsn_command: there is no program {command[0]}", todo="correct its path") from None
    except OSError as error:
        raise UsageError(f"dsn_command: {command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Retry(f"dsn_command: {command[0]} took more than {COMMAND_TIMEOUT} s", todo="run it by hand") from None
    printed = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode or not printed:
        how = f"ended with exit code {done.returncode}" if done.returncode else "printed nothing"
        raise Retry(f"dsn_command: {command[0]} {how}", todo="run it by hand: its output is not shown here")
    return printed


ConnId = Annotated[str, Field(strict=True), AfterValidator(_conn_id)]


class Endpoint(Section):
    """A database: an Airflow connection's id, or a dsn without a literal password."""

    conn_id: ConnId | None = None
    """An Airflow connection; its extras `iam` and `azure_conn_id` work. Either this or `dsn` or `dsn_command`."""
    dsn: Annotated[str, Field(strict=True), AfterValidator(_dsn)] | None = None
    """The server without Airflow: a conninfo string or a URI in which `${VAR}` stands for all of it, or for single
    values. Type: conninfo or URI.
    """

    dsn_command: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_command)] | None = None
    """Outside Airflow, and refused in operators: a command, as a list of its words, that prints a conninfo or URI, or
    the password for `dsn` where that stands beside it. It is run again for each new connection once ten minutes have
    passed, or once its credential is refused. Type: list of text.
    """

    def resolve(self, env: Mapping[str, str]) -> str:
        """The dsn as a conninfo with its `${VAR}` taken from `env`, or what `dsn_command` prints now. UsageError where
        it cannot be."""
        if self.dsn_command is not None:
            return self._with_printed(_printed(self.dsn_command, env), env)
        return self._resolved(env)

    def _with_printed(self, printed: str, env: Mapping[str, str]) -> str:
        if self.dsn is not None:
            return make_conninfo(self._resolved(env), password=printed)
        try:
            conninfo_to_dict(printed)
        except psycopg.Error:
            raise UsageError(
                "dsn_command printed no Postgres conninfo or URI",
                todo="let it print one, or give a dsn beside it for which it prints the password",
            ) from None
        return printed

    def _resolved(self, env: Mapping[str, str]) -> str:
        if self.dsn is None:
            raise UsageError(
                f"connection {self.conn_id} is known to Airflow only",
                todo="run it through Airflow, or give the pipeline file a dsn",
            )

        def value(name: str) -> str:
            if not env.get(name):
                raise UsageError(f"the environment variable {name} is not set", todo=f"export {name}=...")
            return env[name]

        if whole := VARIABLE.fullmatch(self.dsn):
            conninfo = value(whole[1])
            try:
                conninfo_to_dict(conninfo)
            except psycopg.Error:
                raise UsageError(
                    f"the environment variable {whole[1]} holds no Postgres conninfo or URI",
                    todo=f"export {whole[1]}=postgresql://user@host:port/database",
                ) from None
            return conninfo
        # Value by value, so that a password with spaces or @ in it needs no escaping.
        values = {
            keyword: VARIABLE.sub(lambda found: value(found[1]), text)
            for keyword, text in _dsn_values(self.dsn).items()
        }
        return make_conninfo("", **values)
