"""The page in a browser, as people have it: in Airflow's frame, with a scheduler at work, one who decides and one who
may only read. `PGDDL_WRITE_PICTURES=1` writes what they see into docs/pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.compare import differences
from tests.conftest import REPOSITORY
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import standalone
from tests.integration.lifecycle import execute, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]

PICTURES = REPOSITORY / "docs" / "pictures"
PATIENCE = 120_000  # ms
# No service of the browser's own is asked, and no sandbox is needed for pages of ours.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
DAG = """
import os
from pathlib import Path

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlReplayOperator, PgddlStagesOperator
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

SHOP = {"pipeline": "shop", "source": {"conn_id": "shop_old"}, "target": {"conn_id": "shop_new"},
        "tables": {"include": ["public.*"]}, "ddl": {"approval": "required"}}

with DAG("move_shop", schedule=None):
    copy = PgddlStagesOperator(task_id="copy", pipeline=SHOP, stages="setup..replay")
    night = PythonSensor(task_id="night", python_callable=Path(os.environ["NIGHT"]).exists, poke_interval=0.5)
    follow = PgddlReplayOperator(task_id="follow", pipeline=SHOP, on_blocked="go_on")
    gate = PgddlSchemaSensor(task_id="gate", pipeline=SHOP, mode="poke", poke_interval=1)
    cut_over = PgddlStagesOperator(task_id="cut_over", pipeline=SHOP, stages="replay..cleanup", on_blocked="fail")
    copy >> night >> follow >> gate >> cut_over
"""
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, total int NOT NULL);
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 5000) n;
INSERT INTO orders SELECT n, n % 5000 + 1, n FROM generate_series(1, 20000) n;
"""
# A picture of the last hour takes no hour.
LAST_HOUR = """
INSERT INTO pgddl.windows (pipeline, window_no, run, keys, rows, pending, taken_at, finished_at)
SELECT 'shop', 1000 + n, 1, 400 + 300 * sin(n / 6.0), 400, 0,
       now() - n * interval '1 min' - interval '1.5 s' * (2 + cos(n / 4.0)), now() - n * interval '1 min'
FROM generate_series(2, 58) n
"""


@pytest.fixture
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


def test_people_see_a_migration_stop_and_say_how_it_goes_on(
    airflow: Airflow, source_dsn: str, target_dsn: str, tmp_path: Path, browser: Browser
) -> None:
    execute(source_dsn, SHOP)
    dags, night = tmp_path / "dags", tmp_path / "night"
    dags.mkdir()
    (dags / "move_shop.py").write_text(DAG)
    (tmp_path / "passwords.json").write_text('{"ann": "anns password", "vic": "vics password"}')
    env = {
        "AIRFLOW_CONN_SHOP_OLD": postgres_connection(source_dsn),
        "AIRFLOW_CONN_SHOP_NEW": postgres_connection(target_dsn),
        "NIGHT": str(night),
        "AIRFLOW__PGDDL__PAGE_REFRESH": "1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:user,vic:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json"),
    }
    with standalone(airflow, tmp_path, dags, **env) as scheduled:
        scheduled.wait_for(scheduled.answers)
        scheduled.wait_for(lambda: scheduled.knows("move_shop"))
        ann, pages = logged_in(browser, scheduled.base, "ann")
        shown(pages, "not set up")
        pages.get_by_role("link", name="shop").click()
        shown(pages, "Not set up yet")
        answer = httpx.post(
            f"{scheduled.base}/api/v2/dags/move_shop/dagRuns", json={"logical_date": None},
            headers={"Authorization": f"Bearer {token(scheduled.base, 'ann')}"}, timeout=60,
        )  # fmt: skip
        assert answer.is_success, answer.text

        # Nobody reloads anything from here on.
        shown(pages, "Nothing is blocked, and nothing waits for a person.")
        shown(pages, "In Airflow: night runs")
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            shown(pages, f"{stage} done")
        execute(target_dsn, "ALTER TABLE customers ALTER COLUMN name TYPE varchar(40)")
        execute(source_dsn, "ALTER TABLE orders ADD COLUMN gift text DEFAULT 'none'; UPDATE orders SET gift = 'a card'")
        night.touch()
        shown(pages, "What is blocked, why, and what to do")
        shown(pages, "public.customers, public.orders are blocked. DDL waits for a person.")
        shown(pages, "In Airflow: gate runs")
        secrets = [str(conninfo_to_dict(dsn)["password"]) for dsn in (source_dsn, target_dsn)]
        everything = pages.locator("html").inner_html()
        assert not any(secret in everything for secret in secrets)
        if os.environ.get("PGDDL_WRITE_PICTURES"):
            execute(target_dsn, LAST_HOUR)
            take_pictures(browser, ann, scheduled.base)
        reads_only(browser, scheduled.base)

        mended = copied(ann, pages.locator("section", has_text="public.customers").locator("pre.copy"))
        assert mended.startswith("ALTER TABLE public.customers ALTER COLUMN name TYPE text"), mended
        execute(target_dsn, mended)
        by_keyboard(ann, pages)
        shown(pages, "applied")
        scheduled.wait_for(lambda: scheduled.states_of("move_shop") == ["success"])
        shown(pages, "Run 1: finished")
        assert pages.get_by_text("Pause…").count() == 0
        on_what_airflow_shows(ann, f"{scheduled.base}/dags/move_shop", answer.json()["dag_run_id"])
    assert differences(source_dsn, target_dsn) == []


def token(base: str, who: str) -> str:
    login = {"username": who, "password": f"{who}s password"}
    return str(httpx.post(f"{base}/auth/token", json=login, timeout=60).json()["access_token"])


def logged_in(browser: Browser, base: str, who: str, **how: Any) -> tuple[Page, FrameLocator]:
    """A window of this person's, who has gone from the login to the page as people do; and the page in it."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 1000}, **how})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE)
    window = context.new_page()
    window.goto(base)
    window.get_by_label("Username").fill(who)
    window.get_by_label("Password").fill(f"{who}s password")
    window.get_by_role("button", name="Sign in").click()
    window.get_by_role("button", name="Browse").click()
    window.get_by_role("menuitem", name="pgddl").click()
    frame = window.frame_locator("iframe")
    frame.get_by_role("heading", name="Pipelines").wait_for()
    return window, frame


def shown(frame: FrameLocator, words: str) -> None:
    """Once the page says so, by itself."""
    from playwright.sync_api import TimeoutError as Never

    try:
        frame.locator("main").filter(has_text=words).wait_for()
    except Never:
        pytest.fail(f"{words!r} is not shown:\n{frame.locator('main').inner_text()}")


def copied(window: Page, box: Any) -> str:
    """What the button of an SQL box gives somebody."""
    (inner,) = window.frames[1:]
    box.get_by_role("button", name="Copy").click()
    given: list[str] = []
    wait_until(lambda: given.append(inner.evaluate("navigator.clipboard.readText()")) or given[-1], every=0.25)
    return given[-1]


def reads_only(browser: Browser, base: str) -> None:
    """Who may read sees why it stands still; there is nothing to press, and nothing that they send is done."""
    window, page = logged_in(browser, base, "vic")
    page.get_by_role("link", name="shop").click()
    shown(page, "What is blocked, why, and what to do")
    assert page.get_by_text("ALTER TABLE public.customers ALTER COLUMN name TYPE text").count() > 0
    assert page.locator("form").count() == 0 and page.locator("summary", has_text="…").count() == 0
    (inner,) = window.frames[1:]
    for action in ("pause", "approve", "sync"):
        send = "path => fetch(path, {method: 'POST', body: new URLSearchParams({event: 1})}).then(a => a.status)"
        assert inner.evaluate(send, f"/pgddl/move_shop/shop/{action}") == 403
    window.context.close()


def by_keyboard(window: Page, page: FrameLocator) -> None:
    """A person's whole way through an approval without a mouse: what asks once more can be left, and confirmed."""
    summary = page.locator("summary", has_text="Approve…").first  # in the box of the table that it blocks
    summary.focus()
    window.keyboard.press("Enter")
    confirm = page.get_by_role("button", name="Yes, approve")
    confirm.wait_for()
    window.keyboard.press("Escape")
    confirm.wait_for(state="hidden")
    window.keyboard.press("Enter")  # it has the focus again
    confirm.wait_for()
    window.keyboard.press("Tab")
    window.keyboard.press("Enter")
    shown(page, "Lately settled")


def on_what_airflow_shows(ann: Page, dag: str, run: str) -> None:
    """The page is a tab of the DAG, of its run, and of a task of it that is ours."""
    window = ann.context.new_page()
    for place in ("", f"/runs/{run}", f"/runs/{run}/tasks/copy"):
        window.goto(f"{dag}{place}")
        window.get_by_role("link", name="pgddl", exact=True).click()
        shown(window.frame_locator("iframe"), "Run 1: finished")
    window.close()


def take_pictures(browser: Browser, ann: Page, base: str) -> None:
    """Of what is shown just now: the list, the pipeline in Airflow's frame, dark, and on a telephone."""
    PICTURES.mkdir(exist_ok=True)
    ann.screenshot(path=PICTURES / "page.png")
    for name, scheme, width, path in (
        ("page-list", "light", 1100, ""), ("page-dark", "dark", 1100, "move_shop/shop"),
        ("page-narrow", "light", 420, "move_shop/shop"),
    ):  # fmt: skip
        other = ann.context.browser.new_context(  # type: ignore[union-attr]
            storage_state=ann.context.storage_state(),
            color_scheme=scheme,
            viewport={"width": width, "height": 900 if path else 200},
        )
        window = other.new_page()
        window.goto(f"{base}/pgddl/{path}")
        window.locator("h1").wait_for()
        window.screenshot(path=PICTURES / f"{name}.png")
        other.close()
