"""What we say has no sign that a database in another encoding could not take."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import airflow_provider_pgddl
from airflow_provider_pgddl.engine.server import encodings

PACKAGE = Path(airflow_provider_pgddl.__file__).parent


def said(tree: ast.Module) -> Iterator[str]:
    """Every string but docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_every_sign_beyond_ascii_can_be_said_otherwise() -> None:
    signs = {
        sign
        for file in PACKAGE.rglob("*.py")
        for text in said(ast.parse(file.read_text(encoding="utf-8")))
        for sign in text
        if not sign.isascii()
    }
    assert signs <= set(encodings.SIGNS)
    assert all(other.isascii() for other in encodings.SIGNS.values())


def test_what_an_encoding_holds_stays() -> None:
    for encoding, text, written in (
        ("LATIN1", "größe → …", "größe -> ..."),
        ("WIN1251", "тип → …", "тип -> …"),
        ("EUC_JP", "型 → …", "型 → …"),
        ("SQL_ASCII", "größe →", "größe →"),
    ):
        as_json, _ = encodings._fitting(encoding)
        assert as_json([text]) == f'["{written}"]'
