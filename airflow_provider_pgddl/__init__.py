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
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_pgddl.triggers.schema", "airflow_provider_pgddl.triggers.watch"],
            }
        ],
        "config": {
            "pgddl": {
                "description": "Defaults of this provider: of its page in the API server, and of its operators.",
                "options": {
                    "journal_timeout": {
                        "description": "After how many seconds a server that has not answered is said to be silent.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "2",
                    },
                    "spark_conn_id": {
                        "description": "The Spark connection of operators that name none, nor does their pipeline.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "spark_big",
                        "default": "spark_default",
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
        "extra-links": ["airflow_provider_pgddl.links.PipelineLink", "airflow_provider_pgddl.links.SparkLink"],
        "cli": ["airflow_provider_pgddl.cli.airflow_commands"],
    }
