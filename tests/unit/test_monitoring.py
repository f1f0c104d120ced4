"""Monitoring against the code: dashboard, alerts and their pages name only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import parser

from airflow_provider_pgddl.engine.commands import metrics
from airflow_provider_pgddl.engine.journal.schema import GateResult
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.verdict import FindingKind, Reason
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "docs" / "how-to" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
PAGE = (FOLDER / "index.md").read_text() + (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
USERS = ("public", "users")

# A selector, a range, a function or a word between operators: what our expressions are made of.
# Of others' metrics we use the age of the file that the page has node_exporter read.
AGE, FILES = "node_textfile_mtime_seconds", {"/var/lib/node_exporter/textfile/pgddl_shop.prom", "pgddl_shop.prom"}
NAME = re.compile(rf"\b(?:pgddl_\w+|{AGE})")
SELECTOR = re.compile(rf"(pgddl_\w+|{AGE})\{{([^}}]*)\}}")
MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*')
WORDS = {"sum", "count", "by", "rate", "increase", "absent", "vector", "or", "time"}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, set[str]]]:
    """Sample name → label → values, of a pipeline of one table that has counted everything once."""
    pipeline = load_pipeline(
        {
            "pipeline": "shop",
            "source": {"conn_id": "a"},
            "target": {"conn_id": "b"},
            "tables": {"include": ["public.*"]},
        }
    )
    known = metrics._Known(
        "shop",
        {USERS: {"pending_keys": 1, "changes_in_log": 2, "lag_keys": 3, "chunks_left": 3}},
        {USERS: False},
        {(USERS, "mismatches", kind): 1.0 for kind in get_args(FindingKind)},
        {"failed": 1},
        {"bytes": 4, "seconds": 0.5},
        5,
        0.05,
        {"pause": True, "throttle": False},
    )
    monkeypatch.setattr(metrics, "_read", lambda *_: known)
    found: dict[str, dict[str, set[str]]] = {}
    for family in parser.text_string_to_metric_families(metrics.text(pipeline, "", "")):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def expressions() -> Iterator[str]:
    """Every PromQL expression of the dashboard and the alerts."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_uses_only_metrics_labels_and_values_that_exist(
    expression: str, printed: dict[str, dict[str, set[str]]]
) -> None:
    printed = {**printed, AGE: {"file": FILES}}
    names = NAME.findall(expression)
    assert names and set(names) <= printed.keys()
    for name, selector in SELECTOR.findall(expression):
        assert MATCHER.sub("", selector).strip(",") == ""
        for label, _, value in MATCHER.findall(selector):
            assert label in printed[name]
            if label == "file":
                assert {file for file in FILES if re.fullmatch(value, file)} == printed[name][label]
            elif not value.startswith("$"):
                assert set(value.split("|")) <= printed[name][label]
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        for label in grouped.split(","):
            assert all(label.strip() in printed[name] for name in names)


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_is_well_formed(expression: str) -> None:
    text = re.sub(r"\[(\d+[smhd]|\$__rate_interval)\]", "", SELECTOR.sub("M", expression))
    assert not re.search(r"[\[\]{}\"]", text)
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        assert depth >= 0
    assert depth == 0
    words = set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"by \([^)]*\)", "by", NAME.sub("M", text))))
    assert words - {"M"} <= WORDS
    for counter in re.findall(r"(pgddl_\w+_(?:total|sum|count))", expression):
        if not expression.startswith(("absent", counter)):  # a counter by itself says nothing
            assert re.search(rf"(rate|increase)\({counter}", expression)


def test_the_legends_and_annotations_name_labels_that_are_left(printed: dict[str, dict[str, set[str]]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= labels_left(target["expr"], printed)
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"{{ \$labels\.(\w+) }}", json.dumps(rule["annotations"])))
            assert used <= labels_left(rule["expr"], printed)


def labels_left(expression: str, printed: dict[str, dict[str, set[str]]]) -> set[str]:
    if expression.startswith("absent"):
        return set()
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    if grouped:
        return {label.strip() for label in grouped[0].split(",")}
    (name, *_) = NAME.findall(expression)
    return {"file"} if name == AGE else set(printed[name])


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["title"] == "pgddl" and DASHBOARD["uid"] == "pgddl"
    assert "id" not in DASHBOARD  # it would be that of another dashboard there
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        assert {"type", "title", "datasource", "gridPos", "targets", "fieldConfig", "options"} <= panel.keys()
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    cells = [
        (x, y)
        for p in DASHBOARD["panels"]
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {v["name"] for v in DASHBOARD["templating"]["list"]} == {"datasource", "pipeline"}


def test_the_panels_that_are_asked_for_are_there() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    assert {"Schema health status", "Schema mismatch alerts", "Validation duration"} <= titles


def test_the_alerts_are_rules_that_prometheus_loads() -> None:
    rules = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
    assert len(rules) == sum(len(group["rules"]) for group in ALERTS["groups"])
    for rule in rules.values():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert "pgddl " in rule["annotations"]["description"]
    blocked = rules["PgddlSchemaBlocked"]
    assert (blocked["expr"], blocked["for"]) == ("pgddl_schema_status == 0", "5m")
    assert blocked["labels"]["severity"] == "critical"
    assert "pgddl schema diff --table {{ $labels.schema }}.{{ $labels.table }}" in blocked["annotations"]["description"]
    assert all(f"`{name}`" in PAGE for name in rules)
    folder, file = re.findall(r"^cd (\S+)$|> \S+ && mv \S+ (\S+)$", PAGE, re.MULTILINE)
    assert f"{folder[0]}/{file[1]}" in FILES and AGE in rules["PgddlMetricsOld"]["expr"]


def test_the_page_lists_every_metric_with_its_labels(printed: dict[str, dict[str, set[str]]]) -> None:
    rows = dict(re.findall(r"^\| `(pgddl_\w+)` \| ([\w, ]+) \|", PAGE, re.MULTILINE))
    bare = {re.sub(r"_seconds_(sum|count)$", "_seconds", name): set(labels) for name, labels in printed.items()}
    assert {name: set(labels.split(", ")) for name, labels in rows.items()} == bare
    for label in (*get_args(Reason), *get_args(GateResult), *metrics._TYPES, *metrics._SKIPPED):
        assert f"`{label}`" in PAGE
