"""What is on the target already, and what it lacks, rights and roles included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import fits, written
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight.facts import (
    KINDS,
    Facts,
    any_brought,
    aside,
    brought,
    cannot_create,
    foreign_keys,
    memberships,
    out_of_the_way,
    recorded,
    running,
)
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers
from airflow_provider_pgddl.engine.server import catalog

SET_ON_PARAMETER = 150_000  # the first version that has such a right
ELSEWHERE = "give the pipeline another target, such as an empty database"


def target_rights(facts: Facts) -> Iterator[Finding]:
    """Schemas, tables and all that belongs to them are created on the target."""
    assert facts.target is not None
    side = facts.target
    if not side.server["can_create"]:
        yield from cannot_create(side)
    schemas = sorted({schema for schema, _ in facts.tables})
    for schema, _, usable, _, _ in side.rows("schemas", schemas=schemas):
        if not usable:
            what = f"role {side.server['role']} may not create in schema {written(schema)}"
            fix = f"GRANT USAGE, CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
            yield Finding("error", "rights", "target", None, what, fix)


def firing(facts: Facts) -> Iterator[Finding]:
    """What would fire for replayed rows on tables that are there already (C13)."""
    assert facts.target is not None
    if facts.pipeline.replaces:
        return  # copies have none of it before the swap
    conn, there = facts.target.conn, dict(enumerate(facts.rows))
    tied = foreign_keys_and_triggers.read_ties(conn, there)
    if foreign_keys_and_triggers.may_silence(conn):
        tied = tied.in_replica_role()
    for number, why in tied.stops((), str(facts.target.server["role"])).items():
        for what, fix in why:
            yield Finding("error", "firing", "target", written(*there[number]), what, fix)


def silenced(facts: Facts) -> Iterator[Finding]:
    """What follow.finish brings would fire for each replayed row; so would all that a server has to which rows go back,
    and by a further way back either server is one."""
    assert facts.target is not None
    side, swap = facts.target, facts.pipeline.swap
    key = "follow.finish" if facts.pipeline.follow.finish else "swap.way_back" if swap.way_back else None
    if key is None or foreign_keys_and_triggers.may_silence(side.conn):
        return
    brought = "which follow.finish brings, " if key == "follow.finish" else ""
    what = f"role {side.server['role']} may not keep triggers and foreign keys, {brought}from firing"
    fix = f"GRANT SET ON PARAMETER session_replication_role TO {side.role};"
    if side.version < SET_ON_PARAMETER:
        fix = f"connect to the {side.where} as a superuser, or leave {key} out"
    yield Finding("error", "firing", "target", None, what, fix)


def existing(facts: Facts) -> Iterator[Finding]:
    """Live tables that the target has already, and that this run has not made itself."""
    assert facts.target is not None
    if facts.pipeline.tables.existing != "refuse":
        return
    made, ours = recorded(facts, facts.target), brought(facts.target, facts.tables)
    roots = {(r.schema, r.name): facts.names[r.root] for r in facts.relations}
    names = list(dict.fromkeys([*facts.tables, *roots]))
    found = facts.target.rows("named", schemas=[s for s, _ in names], names=[t for _, t in names])
    present = {(schema, name) for schema, name, oid, _ in found if oid is not None}
    for schema, name, oid, kind in found:
        root = roots.get((schema, name), (schema, name))
        if oid is None or made.get(root) or (root != (schema, name) and root in present):  # it goes with its root
            continue
        what = f"{KINDS.get(kind, 'something')} of that name is on the target already"
        fix = out_of_the_way(facts.target, (schema, name), kind, oid)
        if by := ours.get(root):
            what += f": {by.has_or_will('applications may use it')}"
            fix = ELSEWHERE
        yield Finding("error", "existing", "target", written(schema, name), what, fix)


def existing_objects(facts: Facts) -> Iterator[Finding]:
    """Views, sequences, types and functions of both sides: the snapshot would stop half-way, at the first."""
    assert facts.target is not None
    if running(facts, facts.target) or facts.pipeline.tables.existing != "refuse":  # then they stay as they are
        return
    there = set(facts.target.rows("objects"))
    both = [row for row in facts.source.rows("objects") if row in there]
    if both:
        kind, _, _, quoted = both[0]
        others = f", and {len(both) - 1} more" if len(both) > 1 else ""
        what = f"the target has objects of the source already: {kind.lower()} {quoted}{others}"
        moves = aside(facts.target, [(kind, quoted) for kind, _, _, quoted in both])
        fix = "\n".join([*moves, "-- or start with an empty database"])
        # What a pipeline has brought there is in use, whichever it was.
        yield Finding("error", "existing", "target", None, what, ELSEWHERE if any_brought(facts.target) else fix)


def event_triggers(facts: Facts) -> Iterator[Finding]:
    """They fire for what clients run, and for what is applied for them."""
    assert facts.target is not None
    if facts.pipeline.capture.ddl == "off":
        return
    if names := [name for (name,) in facts.source.rows("event_triggers")]:
        comes = "with the swap" if facts.pipeline.moves_rows else "by hand only"
        what = (
            f"event trigger {written(names[0])}{_and_more(names)}: what it runs on the source follows; the trigger"
            f" itself comes {comes}, as here it would run that once more"
        )
        yield Finding("warning", "event_trigger", "source", None, what)
    if names := [name for (name,) in facts.target.rows("event_triggers")]:
        what = f"event trigger {written(names[0])}{_and_more(names)} fires for all DDL that is applied here"
        fix = "\n".join(f"ALTER EVENT TRIGGER {facts.target.name(name)} DISABLE;" for name in names)
        yield Finding("warning", "event_trigger", "target", None, what, fix)


def same_ddl(facts: Facts) -> Iterator[Finding]:
    """Another pipeline from the same source that follows what belongs to no table, as this one does: what the one has
    made is there already for the other, and what is run on the source behind a cut-over still reaches its target."""
    assert facts.target is not None
    mine = facts.pipeline
    if (
        mine.capture.ddl == "off"
        or mine.ddl.scope == "replicated_tables"
        or facts.target.rows("journal_exists") != [(True,)]
    ):
        return
    system = catalog.server(facts.source.conn).system
    schemas = {schema for schema, _ in catalog.table_names(facts.source.conn)}
    for name, config, cut_over in facts.target.rows("others_with_ddl", pipeline=mine.pipeline, system=system):
        other = load_pipeline(config)
        if other.capture.ddl == "off" or other.ddl.scope == "replicated_tables" or other.in_place:
            continue
        what = f"pipeline {name!r} follows DDL of this source that belongs to no table (types, functions, views), too"
        if cut_over:
            what += ", and has cut over: what is run there now would change what applications use on the target"
        fix = "ddl: {scope: replicated_tables} in all of them but one, or schemas of their own (ddl.schemas)"
        if any(_schemas(mine)(schema) and _schemas(other)(schema) for schema in schemas):
            yield Finding("warning", "same_ddl", "pipeline", None, what, fix)


def _schemas(pipeline: Pipeline) -> Callable[[str], bool]:
    pattern = re.compile(pipeline.ddl.schemas if pipeline.ddl.scope == "schemas" else "", re.IGNORECASE)
    return lambda schema: pattern.search(schema) is not None


def login_triggers(facts: Facts) -> Iterator[Finding]:
    """They write as whoever logs in, and where that is refused, or waits, so does the login: nobody but those who are
    there already would get behind the fence, and we would not to take it down."""
    assert facts.target is not None
    pipeline = facts.pipeline
    if names := [name for (name,) in facts.source.rows("login_triggers")]:
        what = f"event trigger {written(names[0])}{_and_more(names)} runs at each login"
        fix = "\n".join(
            f"ALTER EVENT TRIGGER {facts.source.name(name)} DISABLE;  -- and leave it so on this server"
            for name in names
        )
        if not pipeline.moves_rows:
            yield Finding("warning", "login_trigger", "source", None, f"{what}: it comes by hand only")
        elif pipeline.swap.fence != "none":
            what += ": once it writes to a table that the cut-over closes, nobody can log in any more, nor can pgddl"
            yield Finding("error", "login_trigger", "source", None, what, fix)
        else:
            what += ", at those of pgddl, too: a row that it writes behind the cut-over keeps cleanup from its end"
            yield Finding("warning", "login_trigger", "source", None, what, fix)
    if names := [name for (name,) in facts.target.rows("login_triggers")]:
        what = f"event trigger {written(names[0])}{_and_more(names)} runs at each login of pgddl: what it writes stays"
        fix = "\n".join(f"ALTER EVENT TRIGGER {facts.target.name(name)} DISABLE;" for name in names)
        yield Finding("warning", "login_trigger", "target", None, f"{what} here", fix)


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def encodings(facts: Facts) -> Iterator[Finding]:
    assert facts.target is not None
    source, target = facts.source.server["encoding"], facts.target.server["encoding"]
    database = facts.target.name(facts.target.server["database"])
    create = f"CREATE DATABASE {database} ENCODING {source} TEMPLATE template0;  -- in its place"
    if source != target:
        what = f"the source's encoding is {source}, the target's {target}"
        # Sessions speak UTF8, so anything that has an encoding fits into a database in UTF8.
        lossless = target == "UTF8" and source != "SQL_ASCII"
        what += "; texts are converted" if lossless else ", which cannot hold every text of the source"
        yield Finding(
            "warning" if lossless else "error", "encoding", "target", None, what, None if lossless else create
        )
        for kind, of, name in facts.source.rows("long_names", encoding=target) if lossless else ():
            named = f"{kind} {written(name)}{f' of {of}' if of else ''}"
            what = f"{named} has more than 63 bytes in {target}, and would be cut"
            yield Finding("error", "encoding", "source", None, what, f"give it a shorter name, or\n{create}")
    elif source == "SQL_ASCII":
        what = "the database's encoding is SQL_ASCII: a text that is not valid UTF-8 would stop its table"
        yield Finding("warning", "encoding", "source", None, what)
    if facts.source.server["locale"] != facts.target.server["locale"]:
        source, target = facts.source.server["locale"], facts.target.server["locale"]
        what = f"texts sort differently: by {source} on the source, by {target} on the target"
        yield Finding("warning", "locale", "target", None, what)
    if facts.target.version // 10_000 < facts.source.version // 10_000:
        what = (
            f"the target is older than the source (Postgres {facts.target.version // 10_000} and "
            f"{facts.source.version // 10_000}): what the older version does not know stops the snapshot"
        )
        yield Finding("warning", "version", "target", None, what)


def extensions(facts: Facts) -> Iterator[Finding]:
    """The snapshot creates every extension of the source on the target."""
    assert facts.target is not None
    side = facts.target
    installed = facts.source.rows("extensions", oids=list(facts.names))
    available = {
        name: (there, anyone)
        for name, there, anyone in side.rows("available_extensions", names=[row[0] for row in installed])
    }
    for name, version, _, needed_by in installed:
        users = sorted(facts.written(oid) for oid in needed_by)
        needed = f" (needed by {users[0]}{f' and {len(users) - 1} more' if len(users) > 1 else ''})" if users else ""
        there, anyone = available.get(name, (False, None))
        if there:
            continue
        if anyone is None:
            what = f"the target server has no files of extension {written(name)} {version}{needed}"
            fix = "install its package on the target's server"
            if not users:
                fix += f", or on the source, if nobody uses it:\nDROP EXTENSION {facts.source.name(name)};"
            yield Finding("error", "extension", "target", users[0] if users else None, what, fix)
        elif not anyone and not side.server["superuser"]:
            what = f"extension {written(name)}{needed} takes a superuser to create"
            fix = f"CREATE EXTENSION {side.name(name)};  -- as a superuser, in database {side.server['database']}"
            yield Finding("error", "extension", "target", users[0] if users else None, what, fix)


def roles(facts: Facts) -> Iterator[Finding]:
    assert facts.target is not None
    side = facts.target
    others = facts.pipeline.ddl.other_roles
    involved: dict[str, bool] = {}
    for role, owner in facts.source.rows("roles", oids=list(facts.names)):
        there = others.get(role, role)
        involved[there] = owner or involved.get(there, False)
    present = memberships(facts, involved)
    missing = [role for role in involved if role not in present]
    if missing:
        names = ", ".join(written(role) for role in missing)
        if facts.pipeline.ddl.missing_role == "ignore":
            what = f"the target has no role {names}: ownership and grants of theirs are left out there"
        else:
            what = f"the target has no role {names}, and ddl.missing_role is not ignore"
        fix = "\n".join(f"CREATE ROLE {side.name(role)};" for role in missing)
        severity: Literal["error", "warning"] = "warning" if facts.pipeline.ddl.missing_role == "ignore" else "error"
        yield Finding(severity, "role", "target", None, what, fix)
    for role, owner in involved.items():
        if owner and present.get(role) is False:
            what = f"role {side.server['role']} cannot give objects to their owner {written(role)}: it is no member"
            yield Finding("error", "role", "target", None, what, f"GRANT {side.name(role)} TO {side.role};")


def owners(facts: Facts) -> Iterator[Finding]:
    """A table is made by us and then given to its owner, who needs the right to create in its schema for that, unless a
    superuser does it."""
    assert facts.target is not None
    side = facts.target
    if side.server["superuser"]:
        return
    able = [can for (can,) in facts.source.rows("owners_can_create", oids=[r.oid for r in facts.relations])]
    others = facts.pipeline.ddl.other_roles
    there = [others.get(r.owner, r.owner) for r in facts.relations]
    args = {"schemas": [r.schema for r in facts.relations], "owners": there, "able": able}
    for schema, owner, is_there in side.rows("owners_to_be", **args):
        what = f"role {written(owner)} is to own tables in schema {written(schema)}, and may not create there"
        grant = f"GRANT CREATE ON SCHEMA {side.name(schema)} TO {side.name(owner)};"
        fix = grant if is_there else f"CREATE SCHEMA {side.name(schema)};\n{grant}"
        yield Finding("error", "rights", "target", None, what, fix)


def left_behind(facts: Facts) -> Iterator[Finding]:
    """What the target will not have because something beside the pipeline's tables is missing there."""
    for key in foreign_keys(facts):
        if key["referencing_oid"] in facts.names and key["referenced_oid"] not in facts.names:
            table = facts.written(key["referencing_oid"])
            far = written(key["referenced_schema"], key["referenced_name"])
            what = f"foreign key {written(key['name'])} is left out on the target: {far} is no table of this pipeline"
            yield Finding("warning", "foreign_key", "pipeline", table, what, f"add {far} to tables.include")
    for child, parent, *_, ps, pn, _ in facts.source.rows("inheritance", oids=list(facts.names)):
        if child in facts.names and parent not in facts.names:
            what = f"inherits from {written(ps, pn)}, which is no table of this pipeline"
            fix = f"add {written(ps, pn)} to tables.include"
            yield Finding("error", "inheritance", "pipeline", facts.written(child), what, fix)
    yield from children_left(facts)
    count = facts.source.rows("large_objects")[0][0]
    if count:
        some = "at least 1000" if count == 1000 else str(count)
        what = f"the database holds {some} large objects, which belong to no table and are not moved"
        yield Finding("warning", "large_objects", "source", None, what)


def children_left(facts: Facts) -> Iterator[Finding]:
    """A SELECT from a parent reads the rows of its children, which on the target it would not have. Of what the file
    leaves there on purpose it is a warning."""
    if not facts.pipeline.moves_rows:
        return
    found = facts.source.rows("inheritance", oids=facts.row_oids)
    left = {(cs, cn): parent for child, parent, cs, cn, *_ in found if child not in facts.row_oids}
    named = facts.source.rows("named", schemas=[s for s, _ in left], names=[n for _, n in left])
    for child, kind in (((schema, name), kind) for schema, name, _, kind in named if not schema.startswith("pg_temp")):
        meant = any(fits(p, child) for p in (*facts.pipeline.tables.exclude, *facts.pipeline.tables.schema_only))
        parent, quoted = facts.written(left[child]), written(*child)
        what = f"{quoted} inherits from it and its rows stay: whoever reads {parent} sees them on the source only"
        if kind == "f":
            yield Finding("warning", "inheritance", "pipeline", parent, f"foreign table {what}")
        elif meant:
            yield Finding("warning", "inheritance", "pipeline", parent, what)
        else:
            fix = f"add {quoted} to tables.include; or to tables.exclude, if that is meant"
            yield Finding("error", "inheritance", "pipeline", parent, what, fix)
