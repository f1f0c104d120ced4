"""What we write into a database of another encoding than UTF8, such as a journal in LATIN1: our own words have signs
that it may not hold, and JSON may not say them there by their numbers either.

What users have written is none of our words: SQL, keys, and the plans and files that they stand in are `Verbatim` and
`as_is`, so that the server refuses what it cannot hold."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.abc import Buffer
from psycopg.types.json import Jsonb, set_json_dumps
from psycopg.types.string import StrDumperUnknown

# Of every sign in what we say beyond ASCII, what else says it.
SIGNS = (
    {"…": "...", "→": "->", "–": "-", "ë": "e", "✓": "+", "❌": "x", "⚠": "!"}
    | dict.fromkeys("║╔╗╠╣╟╢╚╝", "|")
    | dict.fromkeys("═─", "-")
)
_CODECS = {
    **{f"LATIN{n}": f"iso8859_{part}" for n, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), 1)},
    **{f"ISO_8859_{n}": f"iso8859_{n}" for n in (5, 6, 7, 8)},
    **{f"WIN{n}": f"cp{n}" for n in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8_r", "KOI8U": "koi8_u", "EUC_CN": "gb2312", "EUC_JIS_2004": "euc_jis_2004", "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
}  # fmt: skip


class Verbatim(str):
    """What users have written: no sign of it becomes another."""

    __slots__ = ()


def as_is(value: Any) -> Jsonb:
    """JSON with what users have written in it."""
    return Jsonb(value, dumps=partial(json.dumps, ensure_ascii=False))


def fit(conn: Connection[Any] | AsyncConnection[Any]) -> None:
    """From here on the session writes nothing of ours that its database cannot hold."""
    encoding = conn.info.parameter_status("server_encoding") or "UTF8"
    if encoding == "UTF8":
        return
    said, dumper = _fitting(encoding)
    set_json_dumps(said, conn)
    conn.adapters.register_dumper(str, dumper)
    conn.adapters.register_dumper(Verbatim, StrDumperUnknown)


@cache
def _fitting(encoding: str) -> tuple[Callable[[Any], str], type[StrDumperUnknown]]:
    words = {ord(sign): other for sign, other in SIGNS.items() if not _holds(encoding, sign)}

    class Fitting(StrDumperUnknown):
        def dump(self, obj: str) -> Buffer | None:
            return super().dump(obj if obj.isascii() else obj.translate(words))

    return partial(_as_json, words), Fitting


def _as_json(words: Mapping[int, str], value: Any) -> str:
    """Signs as they are: SQL_ASCII cannot read their numbers, \\u00e9."""
    return json.dumps(value, ensure_ascii=False).translate(words)


def _holds(encoding: str, sign: str) -> bool:
    """SQL_ASCII holds whatever bytes it is given; of others, which nobody here can tell, the server says so."""
    if encoding not in _CODECS:
        return True
    try:
        codecs.encode(sign, _CODECS[encoding])
    except UnicodeEncodeError:
        return False
    return True
