"""Move and reshape live Postgres tables from Airflow, with Spark doing the heavy lifting."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_INTEGRATION = "Postgres live table moves"


def get_provider_info() -> dict[str, Any]:
    """What Airflow asks of a provider. Every ``airflow`` call reads it, so nothing heavy is imported here."""
    return {
        "package-name": "airflow-provider-pgddl",
        "name": "pgddl",
        "description": "Move and reshape live Postgres tables while applications keep writing.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://www.postgresql.org/",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_pgddl.operators.stages",
                    "airflow_provider_pgddl.operators.approval",
                ],
            }
        ],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_provider_pgddl.sensors.schema"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_provider_pgddl.triggers.schema"]}],
        "extra-links": ["airflow_provider_pgddl.links.PipelineLink"],
        "cli": ["airflow_provider_pgddl.cli.airflow_commands"],
    }
