"""The page's routes. Each asks Airflow's auth manager; what a person may not see is not there for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote

import psycopg
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool

from airflow_provider_pgddl.engine.errors import PgddlError, UsageError, from_postgres
from airflow_provider_pgddl.engine.schema.report import allowing, in_file, whole_command
from airflow_provider_pgddl.page import telling
from airflow_provider_pgddl.page.actions import ACTIONS, Sent, audit, do, is_forged
from airflow_provider_pgddl.page.looks import Looked, Lookout
from airflow_provider_pgddl.page.pipelines import FoundPipeline, pipelines_of, unfinished

NOT_YOURS = "There is no such pipeline, or it is not yours to see"
STATIC = {"pgddl.css": "text/css", "pgddl.js": "text/javascript"}
MOST_SENT = 10_000  # bytes of a form
# The source is asked for what waits there, which may take it a while.
SOURCE_EVERY = 15.0  # seconds
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
POLICY += "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"

User = Annotated[Any, Depends(get_user)]

app = FastAPI(title="pgddl", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])
lookout = Lookout(conf.getfloat("pgddl", "journal_timeout", fallback=2.0))
templates = Environment(
    loader=PackageLoader("airflow_provider_pgddl.page"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
templates.filters |= {name: getattr(telling, name) for name in ("ago", "duration", "size", "count", "events")}
templates.globals |= {"line": telling.line, "whole_command": whole_command, "allowing": allowing, "in_file": in_file}


@app.get("/_static/{name}")
async def static(name: str) -> Response:
    if name not in STATIC:
        raise HTTPException(404)
    return FileResponse(Path(__file__).parent / "static" / name, media_type=STATIC[name])


@app.get("/")
async def pipelines(request: Request, user: User) -> HTMLResponse:
    """Every pipeline of the DAGs that this person may read."""
    mine = await run_in_threadpool(_readable, user)
    seen = await asyncio.gather(*(_journal(one) for one in mine))
    return _shown(request, "pipelines.html", rows=list(zip(mine, seen, strict=True)), dag_id=None, task=None)


@app.get("/{dag_id}")
async def of_dag(request: Request, user: User, dag_id: str, task: str | None = None) -> Response:
    """What Airflow shows on a DAG, on a run, and with `task` on one of its tasks: its pipeline, or all of them; or that
    it has none."""
    if not await run_in_threadpool(_may, "GET", user, dag_id):
        raise HTTPException(404, NOT_YOURS)
    mine = [one for one in await run_in_threadpool(pipelines_of, {dag_id}) if task is None or task in one.tasks]
    if len(mine) == 1:
        return RedirectResponse(_address(request, mine[0]) + ("?part" if "part" in request.query_params else ""), 303)
    seen = await asyncio.gather(*(_journal(one) for one in mine))
    return _shown(request, "pipelines.html", rows=list(zip(mine, seen, strict=True)), dag_id=dag_id, task=task)


@app.get("/{dag_id}/{pipeline}")
async def pipeline_page(request: Request, user: User, dag_id: str, pipeline: str) -> HTMLResponse:
    found = await run_in_threadpool(_found, user, dag_id, pipeline)
    journal, both = await asyncio.gather(_journal(found), _both(found))
    acts = await run_in_threadpool(_may, "PUT", user, dag_id)
    tasks = await run_in_threadpool(unfinished, dag_id)
    return _shown(request, "pipeline.html", found=found, journal=journal, both=both, acts=acts, tasks=tasks)


@app.post("/{dag_id}/{pipeline}/{action}")
async def act(request: Request, user: User, dag_id: str, pipeline: str, action: str) -> Response:
    """One of `actions.ACTIONS`, with the form's `event` and `note`; then the page again."""
    found = await run_in_threadpool(_found, user, dag_id, pipeline)
    if is_forged(request.headers, conf.get("api", "base_url", fallback="") or ""):
        raise HTTPException(403, "This did not come from the page itself")
    if not await run_in_threadpool(_may, "PUT", user, dag_id):
        raise HTTPException(403, "It takes the right to edit the DAG")
    if action not in ACTIONS:
        raise HTTPException(404)
    if int(request.headers.get("content-length", MOST_SENT + 1)) > MOST_SENT:
        raise HTTPException(413)
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    event, note = form.get("event", [""])[0], form.get("note", [""])[0].strip()
    table, digest = form.get("table", [""])[0], form.get("digest", [""])[0]
    sent = Sent(user.get_name(), int(event) if event.isdecimal() else None, note, table, digest)
    await run_in_threadpool(audit, action, found, sent, user.get_name())
    try:
        await run_in_threadpool(do, action, found, sent, _conninfo)
    except (PgddlError, psycopg.Error) as error:
        known = error if isinstance(error, PgddlError) else from_postgres(error, doing=f"doing {action}")
        return _shown(request, "refused.html", 409, found=found, action=action, error=str(known))
    for key in _keys(found):
        lookout.forget(key)
    return RedirectResponse(_address(request, found), 303)


def _address(request: Request, found: FoundPipeline) -> str:
    root = str(request.scope.get("root_path", ""))
    return f"{root}/{quote(found.dag_id, safe='')}/{quote(found.pipeline, safe='')}"


def _readable(user: Any) -> list[FoundPipeline]:
    return pipelines_of(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def _found(user: Any, dag_id: str, pipeline: str) -> FoundPipeline:
    """404 where there is none, and where this person may not know that there is."""
    if _may("GET", user, dag_id):
        for one in pipelines_of({dag_id}):
            if one.pipeline == pipeline:
                return one
    raise HTTPException(404, NOT_YOURS)


def _may(method: Literal["GET", "PUT"], user: Any, dag_id: str) -> bool:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel

    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, details=details, user=user))


def _keys(one: FoundPipeline) -> tuple[Hashable, Hashable]:
    """What is looked at for its page: the journal, and what it takes both servers to say."""
    return ("journal", one.pipeline, one.target), ("both", one.pipeline, one.source, one.target)


async def _journal(one: FoundPipeline) -> Looked:
    if one.target is None:
        return Looked(error=NOT_RESOLVED)
    at = partial(_view, one)
    return await lookout.look(_keys(one)[0], at, fresh=1.0)


def _view(one: FoundPipeline) -> dict[str, Any]:
    from airflow_provider_pgddl.engine.commands.view import view

    return view(one.pipeline, _conninfo(str(one.target)))


async def _both(one: FoundPipeline) -> Looked:
    """What it takes both servers to say."""
    if one.target is None or one.source is None:
        return Looked(error=NOT_RESOLVED)
    return await lookout.look(_keys(one)[1], partial(_status, one), fresh=SOURCE_EVERY)


NOT_RESOLVED = "the pipeline file gives a dsn, which is read where tasks run and never here; with conn_id it is shown"


def _status(one: FoundPipeline) -> dict[str, Any]:
    from airflow_provider_pgddl.engine.commands.view import both, config
    from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

    source, target = _conninfo(str(one.source)), _conninfo(str(one.target))
    return both(load_pipeline(config(one.pipeline, target)), source, target)


def _conninfo(conn_id: str) -> str:
    from airflow_provider_pgddl.connections import conninfo_of, lookup_in_shell

    connection = lookup_in_shell(conn_id)
    if connection is None:
        raise UsageError(f"Airflow's API server knows no connection {conn_id}", todo="add it where this process runs")
    return conninfo_of(connection)


def _shown(request: Request, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    root = str(request.scope.get("root_path", ""))
    part = "part" in request.query_params
    html = templates.get_template(template).render(
        root=root, part=part, refresh=conf.getint("pgddl", "page_refresh", fallback=5), **values
    )
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(html, status_code, headers=headers)
