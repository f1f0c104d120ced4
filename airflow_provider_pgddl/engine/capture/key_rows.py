"""What a slot's stream becomes in the change logs: a line of COPY for each changed row. Pure.

A publication lists the key's columns only, so that a message holds little else; of a table with REPLICA IDENTITY FULL,
and on Postgres 14, all columns come."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgddl.engine.capture.pgoutput import (
    Begin,
    Commit,
    Item,
    RelationMessage,
    Truncate,
    Unchanged,
    Values,
    format_lsn,
)
from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot

LINES_AT_ONCE = 50_000  # are written into the logs together
KEYS_AT_ONCE = 250_000  # of which repetitions are looked for
SHORT = 100  # bytes of a message that is kept for that

# An UPDATE that leaves the key as it is, of a relation with one published column: 'U', oid, 'N', 1 column, 't', the
# value's length, the value.
_PLAIN = struct.Struct("!cIcHc")
_VALUE = _PLAIN.size + 4

_Key = Sequence[bytes | Unchanged | None]

_SPECIAL = re.compile(rb"[\\\n\r\t]")
_ESCAPED = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}


@dataclass(frozen=True, slots=True)
class CapturedLeaf:
    """A relation that is captured: its log table, its key in the log's order by attribute number and type, and its
    columns as they are now, by attribute number; whether some have been `dropped`."""

    log: str
    key: Sequence[int]
    types: Sequence[int]
    columns: Mapping[int, str]
    dropped: bool = False
    unread: bool = False
    """Its values may be in no log of ours: what changes of it is that the log does not know what has changed."""


class NotVisibleYet(Exception):
    """A transaction that has committed is shown by no snapshot yet, and it decides whether a row is captured."""


class KeyRows:
    """Takes what a stream says in its order. `lines` are the log rows since `clear`, by log table, once `settle` was
    called; `border` is where the last whole transaction ends.

    Of the plain updates of one key only the first and the last are kept. Each waited for the transaction before it to
    end, so a snapshot that shows one of them shows all before it: it shows some if it shows the first, and leaves some
    for the next window if it does not show the last."""

    def __init__(
        self,
        leaves: Mapping[int, CapturedLeaf],
        now: Snapshot,
        known: int,
        relations: dict[int, RelationMessage],
    ) -> None:
        """`leaves` are those that are captured as `now` shows them, or a later snapshot. `known` is how far the logs
        have come: what committed before may be sent again. `relations` is what the stream has said of them before, to
        which more is added."""
        self._all, self._now, self._known = leaves, now, known
        self._leaves = leaves
        self._relations = relations
        self._places: dict[int, list[int] | None] = {}  # by relation: where a row has the key's columns; None: not
        self._narrow: set[int] = set()  # relations whose UPDATE may change a key and not say so
        self._plain: dict[bytes, tuple[bytes, list[bytes]]] = {}  # by a message's start: the line's, and its log's
        self._taken = self._plain  # or none, while what comes is known
        self._first: dict[bytes, bytes] = {}  # by a plain update's message: the end of its line
        self._last: dict[bytes, bytes] = {}
        self._xid = self._end = b""
        self._shown = True
        self.lines: dict[str, list[bytes]] = {leaf.log: [] for leaf in leaves.values()}
        self.count = 0
        self.border: int | None = None
        for relation in relations.values():
            self._place(relation)

    @property
    def full(self) -> bool:
        return self.count >= LINES_AT_ONCE or len(self._first) >= KEYS_AT_ONCE

    def clear(self) -> None:
        for lines in self.lines.values():
            lines.clear()
        self._first.clear()
        self._last.clear()
        self.count = 0

    def settle(self) -> None:
        """Plain updates become lines."""
        for data, end in self._first.items():
            self._add_plain(data, end)
        for data, end in self._last.items():
            if end != self._first[data]:  # else of the same transaction
                self._add_plain(data, end)
        self._first.clear()
        self._last.clear()

    def _add_plain(self, data: bytes, end: bytes) -> None:
        start, lines = self._plain[data[: _PLAIN.size]]
        value = _text(data[_VALUE:])
        lines.append(b"%b%b\t%b%b" % (start, value, value, end))
        self.count += 1

    def others(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Takes the plain updates out of a stream, which are most of what most streams say, and yields the rest for
        `take`, at least one message whenever this is `full`."""
        first, last = self._first, self._last
        for data in messages:
            if data in first:
                last[data] = self._end
            elif (
                data[: _PLAIN.size] in self._taken
                and len(first) < KEYS_AT_ONCE
                and _VALUE + int.from_bytes(data[_PLAIN.size : _VALUE]) == len(data) <= SHORT
            ):
                first[data] = self._end
            else:
                yield data

    def take(self, item: Item, lsn: int) -> bool:
        """`lsn` is where the message stands in the WAL. Whether a transaction has ended with it. NotVisibleYet for a
        row of which it cannot be told yet whether it is captured."""
        if type(item) is tuple:
            op, relation, old, new = item
            leaf = self._leaves.get(relation)
            if leaf is not None:
                self._row(op, relation, leaf, old, new, lsn)
            else:
                self._not_captured()
        elif isinstance(item, Begin):
            xid = self._now.widen(item.xid)
            self._shown = self._now.shows(xid)
            self._xid = b"%d" % xid
            self._end = b"\t%b\t%b" % (self._xid, format_lsn(item.commit_lsn).encode())
            known = item.commit_lsn < self._known
            self._leaves, self._taken = ({}, {}) if known else (self._all, self._plain)
        elif isinstance(item, Commit):
            self.border = item.end_lsn
            return True
        elif isinstance(item, RelationMessage):
            self._describe(item)
        elif isinstance(item, Truncate):
            for relation in item.relations:
                if relation in self._leaves:
                    self._add("T", relation, self._leaves[relation], None, None, lsn)
                else:
                    self._not_captured()
        return False

    def _not_captured(self) -> None:
        """The publication has sent what is captured by nobody: of something that was, or by a transaction that has
        captured it itself, as a new partition, and can be decoded before snapshots show it (C1)."""
        if self._leaves is self._all and not self._shown:
            raise NotVisibleYet

    def _describe(self, relation: RelationMessage) -> None:
        if self._relations.get(relation.oid) == relation:  # the server says it again now and then
            return
        self._relations[relation.oid] = relation
        self.settle()  # the same bytes may mean something else from here on
        self._place(relation)

    def _place(self, relation: RelationMessage) -> None:
        leaf = self._all.get(relation.oid)
        self._places[relation.oid] = places = _places(relation, leaf)
        plain = _PLAIN.pack(b"U", relation.oid, b"N", 1, b"t")
        self._plain.pop(plain, None)
        # Postgres logs an old row only where a column of the replica identity has changed.
        self._narrow.discard(relation.oid)
        if places is not None and not all(relation.columns[place].in_identity for place in places):
            self._narrow.add(relation.oid)
        elif leaf is not None and places is not None and len(relation.columns) == 1:
            self._plain[plain] = b"U\t%d\t" % relation.oid, self.lines[leaf.log]

    def _row(
        self, op: str, relation: int, leaf: CapturedLeaf, old: Values | None, new: Values | None, lsn: int
    ) -> None:
        places = self._places[relation]
        if places is None or (op == "U" and old is None and relation in self._narrow):
            self._add("X", relation, leaf, None, None, lsn)
            return
        before, after = old and [old[n] for n in places], new and [new[n] for n in places]
        if op == "U":
            before = before or after  # the key is what it was
            if before and after:
                after = [b if a is Unchanged.TOAST else a for a, b in zip(after, before, strict=True)]
        # No key has a NULL: another replica identity has left its columns out.
        if any(not isinstance(value, bytes) for value in [*(before or ()), *(after or ())]):
            self._add("X", relation, leaf, None, None, lsn)
            return
        self._add(op, relation, leaf, before, after, lsn)

    def _add(self, op: str, relation: int, leaf: CapturedLeaf, old: _Key | None, new: _Key | None, lsn: int) -> None:
        none = [b"\\N"] * len(leaf.key)
        fields = [
            op.encode(),
            b"%d" % relation,
            *(map(_text, old) if old else none),
            *(map(_text, new) if new else none),
            self._xid,
            format_lsn(lsn).encode(),
        ]
        self.lines[leaf.log].append(b"\t".join(fields))
        self.count += 1


def _places(relation: RelationMessage, leaf: CapturedLeaf | None) -> list[int] | None:
    """Where a row of the relation has the key's columns, in the log's order; None where that is not known: the key has
    become another one meanwhile."""
    if leaf is None or leaf.unread:
        return None
    columns = relation.columns
    if relation.replica_identity != "f" and len(columns) == len(leaf.key):
        # The list is by attribute number, so columns may have had other names.
        order = sorted(leaf.key)
        places = [order.index(number) for number in leaf.key]
    elif (found := _places_among_all([c.name for c in columns], leaf)) is not None:
        places = found
    else:
        return None
    if any(columns[place].type_oid != type_ for place, type_ in zip(places, leaf.types, strict=True)):
        return None
    return places


def _places_among_all(names: Sequence[str], leaf: CapturedLeaf) -> list[int] | None:
    """The same of a message with all columns, which may be older than their present names. Where none was ever dropped
    they stand where they stood; else names decide, unless one is new and others are gone: that may be a renaming."""
    order = sorted(leaf.columns)
    present = [leaf.columns[number] for number in order]
    if any(number not in leaf.columns for number in leaf.key):
        return None
    places = [order.index(number) for number in leaf.key]
    stand = all(place < len(names) for place in places)
    if not leaf.dropped:
        return places if stand else None
    if stand and len(names) <= len(present) and all(names[place] == present[place] for place in places):
        return places
    if any(present[place] not in names for place in places) or not ({*names} <= {*present} or {*names} >= {*present}):
        return None
    return [names.index(present[place]) for place in places]


def _text(value: bytes | Unchanged | None) -> bytes:
    if not isinstance(value, bytes):
        return b"\\N"
    return _SPECIAL.sub(lambda found: _ESCAPED[found[0]], value) if _SPECIAL.search(value) else value
