"""What every stage does in between. DDL is read, applied and accounted for (`ddl`, `reconcile`), new tables are taken
up, windows run until the copies have caught up (`catch_up`), with workers that are there before a snapshot is taken
(`workers_at_snapshot`), rows and schemas are compared, the gate is asked; for a
target that is followed, sequences are kept ahead and the rest is finished.

What only one stage does belongs to that stage; one window or one range, to `rows`; a swap, to `swapping`."""
