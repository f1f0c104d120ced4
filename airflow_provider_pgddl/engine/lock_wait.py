"""How long a lock is waited for: whoever comes after us queues behind us for as long."""

from __future__ import annotations

from airflow_provider_pgddl.engine.connect import Session, may_set


def limit_lock_wait(conn: Session, seconds: float) -> None:
    """For the caller's transaction: no lock is waited for any longer, so nobody queues behind us any longer.

    The server cancels an autovacuum that somebody waits for, but only after `deadlock_timeout`, which is longer than
    we wait: it goes on for hours, and no try would ever get its lock. So that is shortened, too, where our role may."""
    wait = max(2, round(seconds * 1000))
    conn.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [f"{wait}ms"])
    if may_set(conn, "deadlock_timeout"):
        conn.execute("SELECT pg_catalog.set_config('deadlock_timeout', %s, true)", [f"{min(wait // 2, 1000)}ms"])
