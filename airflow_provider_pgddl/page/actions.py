"""What a person can tell a pipeline on the page: each is what a command of the shell does, with the person's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.page.pipelines import FoundPipeline

ACTIONS = frozenset(("pause", "resume", "cancel", "approve", "retry", "skip", "resolve", "sync", "seen"))
COOKIE = "_token"  # Airflow's, which says who somebody is
NOT_HERE = "the pipeline file gives a dsn, which is read where tasks run and never here"


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent: the id of a DDL event or an exception, where it is about one, and a note; for a schema sync the
    table, and the digest of the SQL that was shown. `who` has sent it."""

    who: str
    event: int | None = None
    note: str = ""
    table: str = ""
    digest: str = ""


def do(action: str, found: FoundPipeline, sent: Sent, conninfo: Callable[[str], str]) -> None:
    """One of ACTIONS; our errors where it cannot be done."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.commands import ddl, sync_requests
    from airflow_provider_pgddl.engine.commands.view import config
    from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

    if found.target is None or found.source is None:
        raise UsageError(NOT_HERE, todo="use the shell")
    target = conninfo(found.target)
    pipeline = load_pipeline(config(found.pipeline, target))
    match action:
        case "pause":
            why = f"{sent.note} ({sent.who})" if sent.note else f"by {sent.who}"
            stages.pause(pipeline, target, why, sent.who)
        case "resume":
            stages.resume(pipeline, target, sent.who)
        case "cancel":
            stages.cancel(pipeline, target, sent.who)
        case "approve":
            ddl.approve(pipeline, target, [_event(sent)], sent.who)
        case "skip" | "resolve":
            _require_note(sent)
            status: Literal["skipped", "resolved"] = "skipped" if action == "skip" else "resolved"
            # The source is asked about an event that it could not record.
            source = conninfo(found.source)
            ddl.record_decision(pipeline, source, target, _event(sent), status, sent.note, sent.who)
        case "retry":
            # One try, while a person waits for it: whoever stands in the way is told of.
            once = pipeline.model_copy(update={"ddl": pipeline.ddl.model_copy(update={"retry_for": 0.0})})
            ddl.retry(once, conninfo(found.source), target, _event(sent), sent.who)
        case "sync":
            sync_requests.ask(pipeline, conninfo(found.source), target, sent.table, sent.digest, sent.who)
        case "seen":
            _require_note(sent)
            ddl.resolve_exception(pipeline, conninfo(found.source), target, _event(sent), sent.note, sent.who)


def _require_note(sent: Sent) -> None:
    if not sent.note:
        raise UsageError("a note is missing", todo="say why, or what was done: it stays with the event")


def _event(sent: Sent) -> int:
    if sent.event is None:
        raise UsageError("which DDL event this is about is missing")
    return sent.event


def is_forged(headers: Mapping[str, str], base_url: str) -> bool:
    """Whether another site may have had the browser send this. A browser says where a request comes from, and no page
    can have it say otherwise; who sends a token by hand is not a browser that was misled. Beside Airflow's cookie a
    token proves nothing: Airflow takes the cookie where it does not know the scheme, and before 3.3 in any case."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip() and f"{COOKIE}=" not in headers.get("cookie", ""):
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site != "same-origin"
    origin = urlsplit(headers.get("origin", "")).netloc
    return not origin or origin not in {headers.get("host"), urlsplit(base_url).netloc}


def audit(action: str, found: FoundPipeline, sent: Sent, display_name: str) -> None:
    """A line in Airflow's audit log, before anything is done."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    extra = {
        "pipeline": found.pipeline, "event": sent.event, "note": sent.note or None, "table": sent.table or None,
        "digest": sent.digest or None,
    }  # fmt: skip
    with create_session() as session:
        session.add(
            Log(
                event=f"pgddl {action}", owner=sent.who, owner_display_name=display_name, dag_id=found.dag_id,
                extra=json.dumps({key: value for key, value in extra.items() if value is not None}),
            )
        )  # fmt: skip
