"""The demo's two servers and its shop by themselves, for the tutorial.

Writes `shop.env` into the current folder, to be read by a shell, and `shop.pgpass`, so that no connection string holds
a password. Both files go with the servers, at Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster, ClusterFailed, remove_left
from airflow_provider_pgddl.demo.surroundings import forget_settings_of_libpq, terminable

PASSWORDS, ENVIRONMENT = "shop.pgpass", "shop.env"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_pgddl.demo.servers", description=__doc__)
    parser.add_argument("--scale", type=int, default=1, help="size of the shop (default %(default)s)")
    args = parser.parse_args(argv)
    folder = Path.cwd()
    forget_settings_of_libpq()
    remove_left()
    try:
        _refuse_existing(folder)
        with terminable(), contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
            old, new = stack.enter_context(Cluster(16)), stack.enter_context(Cluster(18))
            shop.load(old, scale=args.scale)
            shop.create_database(new)
            for path, text in _files(folder, old, new).items():
                _write(path, text)
                stack.callback(path.unlink, missing_ok=True)
            print("Postgres 16 has the shop, Postgres 18 an empty database. In another terminal: . ./shop.env")
            print("Ctrl-C ends both servers.", flush=True)
            signal.pause()
    except (ClusterFailed, FileExistsError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _refuse_existing(folder: Path) -> None:
    """Before servers are started for nothing."""
    for path in map(folder.joinpath, (PASSWORDS, ENVIRONMENT)):
        if os.path.lexists(path):
            raise FileExistsError(
                f"{path} is there already: remove it if no other demo runs in this folder, or run this in another one"
            )


def _write(path: Path, text: str) -> None:
    """Only for us to read, from its first moment on; FileExistsError where there is anything of that name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _files(folder: Path, old: Cluster, new: Cluster) -> dict[Path, str]:
    passwords = folder / PASSWORDS
    lines = [f"PATH={shlex.quote(str(new.bin('psql').parent))}:$PATH"]
    for name, cluster in (("SHOP_SOURCE", old), ("SHOP_TARGET", new)):
        dsn = make_conninfo(
            host="127.0.0.1", port=cluster.port, dbname=shop.DATABASE, user="postgres", passfile=str(passwords)
        )
        lines.append(f"export {name}={shlex.quote(dsn)}")
    return {
        passwords: "".join(f"127.0.0.1:{c.port}:*:*:{c.password}\n" for c in (old, new)),
        folder / ENVIRONMENT: "\n".join([*lines, "export PATH"]) + "\n",
    }


if __name__ == "__main__":
    sys.exit(main())
