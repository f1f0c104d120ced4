"""Ships ``spark_jobs`` and ``dags_examples`` inside the package, in real wheels only.

An editable install reads them from the repository; hatchling's own force-include would leave a copy that goes stale.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("spark_jobs", "dags_examples")


class ShipBesideThePackage(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for folder in SHIPPED:
            for file in sorted(Path(self.root, folder).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    inside = file.relative_to(self.root)
                    build_data["force_include"][str(file)] = f"airflow_provider_pgddl/{inside.as_posix()}"
