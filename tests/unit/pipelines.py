"""Short pipeline files, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import EXIT_USAGE, PipelineFileError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

MIGRATE = """\
pipeline: shop
source: {conn_id: shop_pg16}
target: {conn_id: shop_pg18}
tables: {include: ["public.*"]}
"""


IN_PLACE = """\
pipeline: shop
source: {conn_id: shop_pg16}
rewrite: {public.orders: {}}
"""


def migrate(**sections: Any) -> dict[str, Any]:
    return {
        "pipeline": "shop",
        "source": {"conn_id": "shop_pg16"},
        "target": {"conn_id": "shop_pg18"},
        "tables": {"include": ["public.*"]},
        **sections,
    }


def in_place(**sections: Any) -> dict[str, Any]:
    return {"pipeline": "shop", "source": {"conn_id": "shop_pg16"}, "rewrite": {"public.orders": {}}, **sections}


def refusal(source: Any, **kwargs: Any) -> str:
    with pytest.raises(PipelineFileError) as caught:
        load_pipeline(source, **kwargs)
    assert caught.value.exit_code == EXIT_USAGE
    return str(caught.value)
