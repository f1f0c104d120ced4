"""What a key of the pipeline file may hold: durations, sizes, words, and a mapping of further keys."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# As in postgresql.conf: kB is 1024 bytes.
_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def seconds(value: object) -> float:
    """A duration such as `50ms`, `3s`, `10min` as seconds. A bare number has no unit and is refused, except 0."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _SECONDS:
        raise ValueError("expected a duration with its unit (us, ms, s, min, h, d), such as 50ms or 10min")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _seconds_text(value: float) -> str:
    micros = round(value * 1e6)
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us"


def size_bytes(value: object) -> int:
    """A size such as `64MB` (1 MB = 1024 kB, as in postgresql.conf) as bytes; a bare number is bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _BYTES:
        raise ValueError("expected a size with its unit (B, kB, MB, GB, TB), such as 64MB")
    return int(float(found[1]) * _BYTES[found[2].lower()])


Seconds = Annotated[float, BeforeValidator(seconds), PlainSerializer(_seconds_text, return_type=str)]
Bytes = Annotated[int, BeforeValidator(size_bytes)]
Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]

# YAML 1.1 reads `off` as False and `null` as None; where those words are values they are meant as words.
OFF = BeforeValidator(lambda value: "off" if value is False else value)
NULL = BeforeValidator(lambda value: "null" if value is None else value)


class Section(BaseModel):
    """A mapping of the file: nothing unknown, nothing changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
