"""Which transactions a snapshot shows, without asking the server. Pure.

See `pg_snapshot` and `pg_visible_in_snapshot` in Postgres' documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pg_snapshot: every transaction below `xmin` is shown, none from `xmax` on, and of those between all but
    `in_progress`. Transactions are 64-bit ids (xid8)."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of the server's text, "xmin:xmax:xid,xid,…". ValueError for anything else."""
        xmin, xmax, xids = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in xids.split(",") if xid))

    def widen(self, xid: int) -> int:
        """The 64-bit id of a transaction that pgoutput names by its lower 32 bits: the one nearest to `xmax`, for
        those that a server still tells apart are less than 2^31 away."""
        distance = (xid - self.xmax + _EPOCH // 2) % _EPOCH - _EPOCH // 2
        widened = self.xmax + distance
        return widened if widened >= 0 else widened + _EPOCH

    def shows(self, xid: int) -> bool:
        """Whether the snapshot shows what this transaction (64 bits) did, if it committed."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.in_progress)
