"""Telling people about a mismatch, through whatever notifiers they have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from airflow.sdk import BaseNotifier

# A notifier or any callable that takes the context, as `on_failure_callback` does; or several.
Notify: TypeAlias = Callable[[Any], object] | Sequence[Callable[[Any], object]]


def announce(notify: Notify | None, context: Mapping[str, Any], facts: Mapping[str, Any], log: Any) -> None:
    """Call every notifier with the task's context and `facts` in it, which its templates can use (`{{ table }}`).

    One that fails is logged and changes nothing else.
    """
    for notifier in (notify,) if callable(notify) else notify or ():
        # A notifier renders its own fields, once and for good: each message needs a fresh one.
        call = copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier
        try:
            call({**context, **facts})
        except Exception:  # somebody else's code must neither open nor break the gate
            log.exception("the notifier %r failed for %s", notifier, facts.get("table"))
