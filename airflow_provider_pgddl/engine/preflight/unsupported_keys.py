"""What a pipeline file may say, and what of it is not built yet. Pure."""

from __future__ import annotations

from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.preflight.findings import Finding

# The values that work, of keys of which not all do.
BUILT: dict[str, tuple[object, ...]] = {
    "capture.rows": ("change_log", "wal", "direct_trigger"),
}


def unsupported(pipeline: Pipeline) -> list[Finding]:
    """What the pipeline asks for that is valid and not built yet: one clear line each, nothing is silently ignored."""
    findings = []

    def later(path: tuple[str, ...], value: object) -> None:
        what = f"{pipeline.where(*path)}: {_as_written(value)} is not built yet"
        built = BUILT.get(".".join(path))
        hint = f"use {' or '.join(map(_as_written, built))}" if built else "leave it out"
        findings.append(Finding("error", "not_built_yet", "pipeline", None, what, hint))

    for key, built in BUILT.items():
        section, name = key.split(".")
        value = getattr(getattr(pipeline, section), name)
        if value not in built:
            later((section, name), value)
    return findings


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else "this"
