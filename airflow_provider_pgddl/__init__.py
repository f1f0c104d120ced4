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
        "config": {
            "pgddl": {
                "description": "The page of this provider, in Airflow's API server.",
                "options": {
                    "journal_timeout": {
                        "description": "After how many seconds a server that has not answered is said to be silent.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "2",
                    },
                    "page_refresh": {
                        "description": "How many seconds lie between two looks of an open page.",
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": None,
                        "default": "5",
                    },
                },
            }
        },
        "notifications": ["airflow_provider_pgddl.notifications.PgddlNotifier"],
        "extra-links": ["airflow_provider_pgddl.links.PipelineLink"],
        "cli": ["airflow_provider_pgddl.cli.airflow_commands"],
    }
