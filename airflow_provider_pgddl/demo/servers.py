"""The demo's two servers and its shop by themselves, for the tutorial.

Writes `shop.env` into the current folder, to be read by a shell, and `shop.pgpass`, so that no connection string holds
a password. Both files go with the servers, at Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_pgddl.demo.servers", description=__doc__)
    parser.add_argument("--scale", type=int, default=1, help="size of the shop (default %(default)s)")
    args = parser.parse_args(argv)
    folder = Path.cwd()
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        old, new = stack.enter_context(Cluster(16)), stack.enter_context(Cluster(18))
        shop.load(old, scale=args.scale)
        shop.create_database(new)
        for path, text in _files(folder, old, new).items():
            stack.callback(path.unlink, missing_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        print("Postgres 16 has the shop, Postgres 18 an empty database. In another terminal: . ./shop.env")
        print("Ctrl-C ends both servers.", flush=True)
        signal.pause()
    return 0


def _files(folder: Path, old: Cluster, new: Cluster) -> dict[Path, str]:
    passwords = folder / "shop.pgpass"
    lines = [f"PATH={shlex.quote(str(new.bin('psql').parent))}:$PATH"]
    for name, cluster in (("SHOP_SOURCE", old), ("SHOP_TARGET", new)):
        dsn = make_conninfo(
            host="127.0.0.1", port=cluster.port, dbname=shop.DATABASE, user="postgres", passfile=str(passwords)
        )
        lines.append(f"export {name}={shlex.quote(dsn)}")
    return {
        passwords: "".join(f"127.0.0.1:{c.port}:*:*:{c.password}\n" for c in (old, new)),
        folder / "shop.env": "\n".join([*lines, "export PATH"]) + "\n",
    }


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
