"""A Spark application that tells where its workers found the engine, and whether its SQL came along."""

from __future__ import annotations

from airflow_provider_pgddl.engine.parallel.spark import spread


def look(_: int) -> tuple[str, int]:
    from airflow_provider_pgddl.engine import errors
    from airflow_provider_pgddl.engine.sql import queries

    return errors.__file__, len(queries("journal"))


if __name__ == "__main__":
    for file, number in spread(look, range(2), workers=2, app="where from"):
        print("found", file, number)
