"""The page in a real API server, over the journal of a pipeline whose stages run here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.errors import Cancelled
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.dags.conftest import AIRFLOW, Airflow, postgres_connection
from tests.integration.lifecycle import Lifecycle, execute, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

PEOPLE = {"ann": "user", "vic": "viewer"}
DAGS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow_provider_pgddl.operators.stages import PgddlReplayOperator
from airflow_provider_pgddl.task_groups import lifecycle

MOVES = {"include": ["public.*"]}

with DAG("move_shop", schedule=None):
    lifecycle(pipeline={"pipeline": "shop", "source": {"conn_id": "shop_old"}, "target": {"conn_id": "shop_new"},
                        "tables": MOVES})
with DAG("silent", schedule=None):
    lifecycle(pipeline={"pipeline": "silent", "source": {"conn_id": "shop_old"}, "target": {"conn_id": "silent"},
                        "tables": MOVES})
with DAG("by_dsn", schedule=None):
    lifecycle(pipeline={"pipeline": "by_dsn", "source": {"dsn": "${SHOP_DSN}"}, "rewrite": {"public.orders": {}}})
with DAG("unknown", schedule=None):
    lifecycle(pipeline="{{ params.pipeline }}")
with DAG("both", schedule=None):
    for name in ("shop", "silent"):
        PgddlReplayOperator(task_id=name, pipeline={"pipeline": name, "source": {"conn_id": "shop_old"},
                            "target": {"conn_id": "silent"}, "tables": MOVES})
with DAG("foreign", schedule=None):
    EmptyOperator(task_id="one")
"""
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL);
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 50) n;
INSERT INTO orders SELECT n, n FROM generate_series(1, 50) n;
"""


@dataclass(frozen=True)
class Page:
    """The API server's page, as these people see it."""

    base: str
    tokens: dict[str, str]

    def get(self, path: str, who: str = "vic") -> httpx.Response:
        return httpx.get(f"{self.base}/pgddl/{path}", cookies={"_token": self.tokens[who]}, timeout=60)

    def post(self, path: str, who: str, headers: dict[str, str] | None = None, **form: str) -> httpx.Response:
        sent = {"sec-fetch-site": "same-origin"} if headers is None else headers
        address = f"{self.base}/pgddl/{path}"
        return httpx.post(address, data=form, headers=sent, cookies={"_token": self.tokens[who]}, timeout=60)

    def until(self, path: str, words: str, who: str = "vic") -> str:
        """The page once it shows these words: what it shows may be a second old."""
        said = ""

        def shows() -> bool:
            nonlocal said
            said = self.get(path, who).text
            return words in said

        try:
            wait_until(shows, seconds=240, every=0.25)
        except AssertionError:
            pytest.fail(f"{words!r} is not shown:\n{said}")
        return said


@contextmanager
def api_server(airflow: Airflow, home: Path, **env: str) -> Iterator[Page]:
    shutil.copy(airflow.home / "airflow.db", home / "airflow.db")
    dags = home / "dags"
    dags.mkdir()
    (dags / "moves.py").write_text(DAGS)
    passwords = {name: f"{name}s password" for name in PEOPLE}
    (home / "passwords.json").write_text(json.dumps(passwords))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}/team"  # behind a path, as a proxy may have it
    settings = {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__PGDDL__JOURNAL_TIMEOUT": "1.5",
        "AIRFLOW__PGDDL__PAGE_REFRESH": "7",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in PEOPLE.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        **env,
    }
    here = Airflow(home)
    parsed = here("dags", "reserialize", dags=dags, **settings)
    assert parsed.returncode == 0, parsed.stdout
    log = home / "api-server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(AIRFLOW), "api-server"],
            env=here.environment(dags, **settings), stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 240
            while True:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                with contextlib.suppress(httpx.TransportError):
                    tokens = {
                        name: httpx.post(f"{base}/auth/token", json={"username": name, "password": password})
                        for name, password in passwords.items()
                    }
                    break
                time.sleep(0.25)
            yield Page(base, {name: answer.json()["access_token"] for name, answer in tokens.items()})
        finally:
            print(log.read_text()[-6000:])
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)


@pytest.fixture
def silence() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        yield deaf.getsockname()[1]


@pytest.fixture
def shop(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, SHOP)
    return lifecycle(
        source_dsn, target_dsn, pipeline="shop", tables={"include": ["public.*"]}, ddl={"approval": "required"}
    )


def test_a_person_sees_what_is_blocked_why_and_what_to_do(
    airflow: Airflow, shop: Lifecycle, silence: int, tmp_path: Path
) -> None:
    nowhere = json.dumps({"conn_type": "postgres", "host": "127.0.0.1", "port": silence, "login": "u", "schema": "s"})
    connections = {
        "AIRFLOW_CONN_SHOP_OLD": postgres_connection(shop.source),
        "AIRFLOW_CONN_SHOP_NEW": postgres_connection(shop.target),
        "AIRFLOW_CONN_SILENT": nowhere,
    }
    with api_server(airflow, tmp_path, **connections) as page:
        nobody_else_learns_that_it_exists(page)
        leads_from_what_airflow_shows(page)
        said = page.get("").text
        for dag_id, name in (("move_shop", "shop"), ("silent", "silent"), ("by_dsn", "by_dsn")):
            assert f'href="/team/pgddl/{dag_id}/{name}"' in said
        assert "has not answered within 1.5 s" in said and "which is read where tasks run and never here" in said
        assert "/pgddl/unknown/" not in said  # a DAG of other tests may have a pipeline of that name
        assert 'data-refresh="7"' in said
        page.until("move_shop/shop", "Not set up yet")
        assert "The journal has not answered within 1.5 s" in page.get("silent/silent").text

        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
            shop.run(stage)
        said = page.until("move_shop/shop", "50 rows")
        for words in ("Run 1: <b>under way</b>", "<b>backfill</b> done", "public.customers", "50 rows", "goes on"):
            assert words in said, said
        assert "What is blocked" not in said

        execute(shop.target, "ALTER TABLE customers ALTER COLUMN name TYPE varchar(3) USING left(name, 3)")
        execute(shop.source, "ALTER TABLE orders ADD COLUMN gift text DEFAULT '<b>&'")
        stages.gate(load_pipeline(shop.content), shop.source, shop.target)
        shop.run("replay")
        said = page.until("move_shop/shop", "What is blocked, why, and what to do")
        assert "ALTER TABLE public.customers ALTER COLUMN name TYPE text" in said, said
        assert "pgddl ddl approve 1 -p FILE" in re.sub(r"approve \d+", "approve 1", said), said
        assert "awaiting approval (ddl.approval: required)" in said and "DEFAULT &#39;&lt;b&gt;&amp;&#39;" in said, (
            "what is shown is escaped"
        )
        decides(page, shop)
        overview = page.until("", 'class="number bad">1<')
        has_it_mended(page, shop)
        cancels(page, shop)
        for text in (said, overview):
            for dsn in (shop.source, shop.target):
                assert str(conninfo_to_dict(dsn)["password"]) not in text
    with contextlib.closing(sqlite3.connect(tmp_path / "airflow.db", timeout=60)) as database:
        audit = database.execute("SELECT event, owner, dag_id, extra FROM log WHERE event LIKE 'pgddl %' ORDER BY id")
        lines = [(event, owner, dag_id, json.loads(extra)) for event, owner, dag_id, extra in audit]
    assert {line[1:3] for line in lines} == {("ann", "move_shop")}
    twice = [action for action in ("sync", "retry", "seen") for _ in range(2)]
    tried = ["pause", "resume", "approve", "approve", "skip", *twice, "pause", "cancel", "resume"]
    assert [line[0] for line in lines] == [f"pgddl {action}" for action in tried]
    assert lines[0][3] == {"pipeline": "shop", "note": "the nightly report"}


def decides(page: Page, shop: Lifecycle) -> None:
    """Who may edit the DAG can act, if it was they who asked for it."""
    path = "move_shop/shop"
    ((event,),) = shop.journal("SELECT id FROM pgddl.ddl_events WHERE status = 'awaiting_approval'")
    page.until(path, "Approve…", "ann")
    assert "Approve…" not in page.until(path, "awaiting approval")
    refused = [
        page.post(f"{path}/pause", "vic"),
        *(
            page.post(f"{path}/pause", "ann", headers)
            for headers in (
                {},
                {"origin": "https://elsewhere.example"},
                {"sec-fetch-site": "cross-site", "origin": page.base},
                {"sec-fetch-site": "same-site", "origin": page.base},
            )
        ),
    ]
    assert {answer.status_code for answer in refused} == {403}
    assert page.post("move_shop/nothing/pause", "vic").status_code == 404
    assert page.post(f"{path}/swap", "ann").status_code == 404, "a swap is a task"
    assert httpx.post(f"{page.base}/pgddl/{path}/pause", timeout=60).status_code == 401
    assert shop.journal("SELECT FROM pgddl.controls WHERE paused_at IS NOT NULL") == []

    done = page.post(f"{path}/pause", "ann", {"origin": page.base.removesuffix("/team")}, note="the nightly report")
    assert (done.status_code, done.headers["location"]) == (303, f"/team/pgddl/{path}")
    page.until(path, "the nightly report (ann)")
    assert page.post(f"{path}/resume", "ann").status_code == 303
    assert ">paused<" not in page.until(path, "Pause…", "ann")
    assert page.post(f"{path}/approve", "ann", event=str(event)).status_code == 303
    again = page.post(f"{path}/approve", "ann", event=str(event))
    assert again.status_code == 409 and "not awaiting approval" in again.text
    assert page.post(f"{path}/skip", "ann", event=str(event)).status_code == 409, "it takes a note"
    shop.run("replay")
    query = "SELECT status, notes FROM pgddl.ddl_events WHERE id = %s"
    assert shop.journal(query, [event]) == [("applied", ["approved by ann"])]
    said = page.until(path, "None: what was captured has been applied")
    assert "ann: <b>pause</b>, “the nightly report (ann)”" in said and "ann: <b>resume</b>" in said
    assert "Lately settled" in said and "approved by ann" in said


def leads_from_what_airflow_shows(page: Page) -> None:
    """The tabs on a DAG, a run and a task, which Airflow shows on those of others, too."""
    for path in ("move_shop", "move_shop?task=lifecycle.backfill", "move_shop?task=lifecycle.gate"):
        led = page.get(path)
        assert (led.status_code, led.headers["location"]) == (303, "/team/pgddl/move_shop/shop"), path
    assert page.get("both?task=silent&part").headers["location"] == "/team/pgddl/both/silent?part"
    said = page.get("both").text
    assert "Pipelines of DAG both" in said
    assert {name for name in ("shop", "silent", "by_dsn") if f"/pgddl/both/{name}" in said} == {"shop", "silent"}
    assert "move_shop" not in said and "by_dsn" not in said, "of other DAGs nothing is told"
    assert "This DAG has no pipeline of pgddl" in page.get("foreign").text
    assert "Task one is about no pipeline" in page.get("foreign?task=one").text


def has_it_mended(page: Page, shop: Lifecycle) -> None:
    """The SQL that mends a table, if it is what was shown; DDL that failed, once more; an exception of capture."""
    path = "move_shop/shop"
    said = page.until(path, "Have the next stage run this SQL…", "ann")
    ((table, digest),) = re.findall(
        r'name="table" value="([^"]*)"><input type="hidden" name="digest" value="(\w+)"', said
    )
    assert table == "public.customers"
    assert page.post(f"{path}/sync", "vic", table=table, digest=digest).status_code == 403
    other = page.post(f"{path}/sync", "ann", table=table, digest="0" * len(digest))
    assert other.status_code == 409 and "not what was shown any more" in other.text
    assert page.post(f"{path}/sync", "ann", table=table, digest=digest).status_code == 303
    assert "Have the next stage run this SQL…" not in page.until(path, "Asked for", "ann")
    execute(shop.target, "ALTER TABLE orders ADD COLUMN paid text")
    execute(shop.source, "ALTER TABLE orders ADD COLUMN paid boolean")
    stages.gate(load_pipeline(shop.content), shop.source, shop.target)
    shop.run("replay")
    done = re.compile(r"ann: <b>sync</b> public.customers.*: done")
    wait_until(lambda: done.search(page.get(path, "ann").text), seconds=240, every=0.25)
    types = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'customers'::regclass"
    assert shop.journal(f"{types} AND attname = 'name'") == [("text",)]

    ddl.approve(load_pipeline(shop.content), shop.target, _ids(shop, "awaiting_approval"), "bob")
    shop.run("replay")
    (failed,) = _ids(shop, "failed")
    page.until(path, "Retry…", "ann")
    again = page.post(f"{path}/retry", "ann", event=str(failed))
    assert again.status_code == 303 and _ids(shop, "failed") == [failed], "it was tried, and is in the way still"
    execute(shop.target, "ALTER TABLE orders DROP COLUMN paid")
    execute(shop.source, "ALTER TABLE pgddl.ddl_queue ADD CONSTRAINT full_disk CHECK (false) NOT VALID")
    execute(shop.source, "CREATE VIEW lost AS SELECT id FROM orders")
    execute(shop.source, "ALTER TABLE pgddl.ddl_queue DROP CONSTRAINT full_disk")
    assert page.post(f"{path}/retry", "ann", event=str(failed)).status_code == 303
    assert _ids(shop, "failed") == []
    assert "What is blocked, why, and what to do" not in page.until(path, f"ann: <b>retry</b> {failed}")

    shop.run("replay")
    said = page.until(path, "of capture", "ann")
    ((number,),) = shop.on_source("SELECT id FROM pgddl.exceptions WHERE resolved_at IS NULL")
    assert f"Exception {number} of capture" in said and "CREATE VIEW lost" in said
    assert page.post(f"{path}/seen", "ann", event=str(number)).status_code == 409, "it takes a note"
    assert page.post(f"{path}/seen", "ann", event=str(number), note="made by hand").status_code == 303
    assert shop.on_source("SELECT note FROM pgddl.exceptions") == [("made by hand (ann)",)]
    assert f"Exception {number}" not in page.until(path, "None: what was captured has been applied")


def _ids(shop: Lifecycle, status: str) -> list[int]:
    return [id_ for (id_,) in shop.journal("SELECT id FROM pgddl.ddl_events WHERE status = %s", [status])]


def cancels(page: Page, shop: Lifecycle) -> None:
    """What is under way ends, and the journal says by whom."""
    path = "move_shop/shop"
    assert "Cancel…" not in page.get(path, "ann").text
    assert page.post(f"{path}/pause", "ann").status_code == 303
    with ThreadPoolExecutor(1) as pool:
        replay = pool.submit(shop.run, "replay")
        page.until(path, "Cancel…", "ann")
        assert page.post(f"{path}/cancel", "ann").status_code == 303
        with pytest.raises(Cancelled):
            replay.result(60)
    assert page.post(f"{path}/resume", "ann").status_code == 303
    assert "ann: <b>cancel</b>" in page.until(path, "Pause…", "ann")
    assert shop.journal("SELECT who FROM pgddl.actions WHERE action = 'cancel'") == [("ann",)]


def nobody_else_learns_that_it_exists(page: Page) -> None:
    for path in ("", "move_shop", "move_shop/shop", "move_shop/nothing", "_static/pgddl.css"):
        assert httpx.get(f"{page.base}/pgddl/{path}", timeout=60).status_code == 401
        token = page.tokens["vic"][:-4] + "AAAA"
        forged = httpx.get(f"{page.base}/pgddl/{path}", cookies={"_token": token}, timeout=60)
        assert forged.status_code in (401, 403)
    missing = [page.get(path) for path in ("no_dag/shop", "move_shop/nothing", "unknown/shop")]
    assert {answer.status_code for answer in missing} == {404}
    assert page.get("_static/plugin.py").status_code == 404
    assert page.get("_static/pgddl.css").headers["content-type"].startswith("text/css")
    assert "frame-ancestors 'self'" in page.get("").headers["content-security-policy"]
