"""What no message shows."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.secrets_in_text import without_secrets


@pytest.mark.parametrize(
    ("dsn", "said", "shown"),
    [
        ("host=db password=hunter2", "password=hunter2 is wrong", "password=*** is wrong"),
        (
            "postgresql://u:p%40ss@db/shop",
            "in postgresql://u:p%40ss@db/shop: p@ss",
            "in postgresql://u:***@db/shop: ***",
        ),
        ("postgresql://u:h%75nter2@db", "h%75nter2, hunter2", "***, ***"),
        ("postgresql://db/shop?password=p%40s+s&user=u", "?password=p%40s+s&", "?password=***&"),
        ("host=db password='it''s'", "it''s", "it''s"),  # no conninfo: nothing of it is known, all of it is hidden
        ("host=db password='it''s'", "host=db password='it''s'", "***"),
        (r"host=db password='it\'s'", r"password='it\'s', it's, it%27s", r"password='***', ***, ***"),
        ("host=db password='p@ss'", "postgresql://u:p%40ss@db", "postgresql://u:***@db"),
        ("", "nothing", "nothing"),
    ],
)
def test_a_secret_is_hidden_however_it_is_spelled(dsn: str, said: str, shown: str) -> None:
    assert without_secrets(said, dsn) == shown
