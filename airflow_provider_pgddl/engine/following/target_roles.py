"""How the statements of a dump of the source name roles on the target: as those of captured DDL do
(`ddl.missing_role`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.grants import map_roles
from airflow_provider_pgddl.engine.ddl.roles import without_missing_roles
from airflow_provider_pgddl.engine.job.context import Context


@dataclass(frozen=True, slots=True)
class Fitted:
    """An event as the target is to have it; what is about roles alone that are missing there, it is not to have."""

    event: DdlEvent
    """With its statement for the target; the source's own where nothing of it is left."""
    missing: tuple[str, ...] = ()
    """Roles that it names and that the target lacks."""
    is_left: bool = True
    """Whether it is about anybody yet."""


class TargetRoles:
    """Reads once which roles the target has."""

    def __init__(self, context: Context):
        self._context = context
        self._ddl = context.pipeline.ddl
        self._mapping = self._ddl.other_roles

    @cached_property
    def there(self) -> set[str]:
        return {name for (name,) in self._context.target.execute("SELECT rolname FROM pg_catalog.pg_roles")}

    def fitted(self, event: DdlEvent) -> Fitted:
        """Without the roles that the target lacks (`ignore`), or with others in their place (a mapping)."""
        if not event.roles:
            return Fitted(event)
        named = [self._mapping.get(role, role) for role in event.roles]
        missing = tuple(sorted(set(named) - self.there - {"public", "PUBLIC"}))
        if self._mapping:
            grantor = self._mapping.get(event.grantor, event.grantor) if event.grantor else None
            mapped = map_roles(event.statement, self._mapping)
            event = replace(event, statement=mapped, roles=tuple(named), grantor=grantor)
            return Fitted(event, missing, is_left=not missing)
        if not missing:
            return Fitted(event)
        # pg_dump never writes CURRENT_USER.
        statement, _ = without_missing_roles(event.statement, self.there, "")
        if statement is None or event.grantor in missing:
            return Fitted(event, missing, is_left=False)
        return Fitted(replace(event, statement=statement), missing)
