"""What the target lacks of the types that columns need, and the statements that make them. Pure."""

from __future__ import annotations

import re

from airflow_provider_pgddl.engine.schema.names import comma_joined, literal, sql_name
from airflow_provider_pgddl.engine.schema.table_model import TypeModel


class Types:
    """The types that columns need and the target does not have: the statements that make them, and those of which
    nothing is known that would."""

    def __init__(self, known: frozenset[str]):
        self.known = set(known)
        self.schemas = {"", "public", *(_schema_of(name) for name in known)}
        self.missing: list[str] = []
        self.unmakeable: list[str] = []
        self.statements: list[str] = []

    def need_schema(self, name: str) -> None:
        if name not in self.schemas:
            self.schemas.add(name)
            self.statements.append(f"CREATE SCHEMA IF NOT EXISTS {name};")

    def need(self, type_: TypeModel) -> None:
        for part in (type_.element, type_.base):
            if part is not None:
                self.need(part)
        # An array comes with what it is of, a multirange with its range.
        if type_.builtin or type_.kind in ("array", "multirange") or type_.name in self.known:
            return
        self.known.add(type_.name)
        self.missing.append(type_.name)
        create = _create_type(type_)
        if create is None:
            self.unmakeable.append(type_.name)
        elif create not in self.statements:  # an extension brings several
            self.need_schema(_schema_of(type_.name))
            self.statements.append(create)

    def sentence(self) -> str:
        if not self.missing:
            return ""
        return f", nor does the target have {'types' if len(self.missing) > 1 else 'type'} {comma_joined(self.missing)}"


def _schema_of(type_name: str) -> str:
    """The schema, quoted as it is there; '' where there is none."""
    parts = re.match(r'("(?:[^"]|"")+"|[^".]+)\.', type_name)
    return parts[1] if parts else ""


def _create_type(type_: TypeModel) -> str | None:
    if type_.extension:
        where = _schema_of(type_.name)
        return f"CREATE EXTENSION IF NOT EXISTS {sql_name(type_.extension)}" + (f" SCHEMA {where};" if where else ";")
    if type_.kind == "enum":
        return f"CREATE TYPE {type_.name} AS ENUM ({comma_joined(map(literal, type_.labels))});"
    if type_.base is not None:
        checks = "".join(f" CHECK ({check})" for check in type_.checks)
        return f"CREATE DOMAIN {type_.name} AS {type_.base.text}{' NOT NULL' if type_.not_null else ''}{checks};"
    if type_.kind == "composite":
        attributes = comma_joined(f"{sql_name(name)} {text}" for name, text in type_.attributes)
        return f"CREATE TYPE {type_.name} AS ({attributes});"
    if type_.kind == "range" and type_.element:
        return f"CREATE TYPE {type_.name} AS RANGE (SUBTYPE = {type_.element.text});"
    return None
