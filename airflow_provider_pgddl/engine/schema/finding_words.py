"""The words for each kind of finding: a problem's title, what it means, and the ways out. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_pgddl.engine.schema.verdict import (
    FindingKind,
    SchemaFinding,
)


@dataclass(frozen=True, slots=True)
class FindingWords:
    """What is said of a kind of finding beside its own sentences. `heading` completes "… on TABLE"; in place of `own`
    within the finding's sentence, `problem` is said in a log and `boxed` in a box; `stop` in place of the impact, in a
    log; `fix` says what the SQL does, `ask` stands above the ways out, `short` is the fix in a word."""

    heading: str = "Schema mismatch"
    own: str = ""
    problem: tuple[str, ...] = ()
    boxed: tuple[str, ...] = ()
    stop: str | None = None
    ask: str = "Fix"
    fix: str = "Change the target database"
    boxed_fix: str = "Change the target database"
    short: str = "Fix target schema"


_WORDS: Mapping[FindingKind, FindingWords] = {
    "source_added_column": FindingWords(
        heading="Schema mismatch detected",
        own="Source has new column '{column}' not in target",
        problem=("Source has new column: '{column}' (type: {source})", "Target does not have this column"),
        boxed=("Source database has new column '{column}' ({source})", "Target database does not have this column"),
        stop="Sync STOPPED to prevent data loss.",
        ask="Actions",
        fix="Add column to target (RECOMMENDED)",
        boxed_fix="Add column to target database",
        short="Add column to target",
    ),
    "type_mismatch": FindingWords(
        heading="Type mismatch",
        own="{source} on the source, {target} on the target",
        problem=("Source: {source}", "Target: {target}"),
        boxed=("Source: {source}", "Target: {target}"),
        fix="Match types (RECOMMENDED)",
        boxed_fix="Match target type to source",
    ),
    "safe_cast": FindingWords(
        heading="Type mismatch",
        own="{source} on the source, {target} on the target",
        problem=("Source: {source}", "Target: {target}"),
        boxed=("Source: {source}", "Target: {target}"),
    ),
    "source_removed_column": FindingWords(
        stop="",
        ask="Decide what to do with target column",
        fix="Remove from target",
        boxed_fix="Remove column from target database",
        short="Remove from target",
    ),
    "target_added_column": FindingWords(
        own="Target has new column '{column}' (NOT NULL, no DEFAULT)",
        problem=("Target has new column '{column}' (NOT NULL, no DEFAULT)", "Source does not have this column"),
        boxed=(
            "Target database has new column '{column}' (NOT NULL, no DEFAULT)",
            "Source database does not have this column",
        ),
        fix="Let target do without a value",
        boxed_fix="Let target database do without a value",
    ),
    "stopped": FindingWords(heading="Table stopped"),
}


_PLAIN = FindingWords()


def finding_words(finding: SchemaFinding) -> FindingWords:
    return _WORDS.get(finding.kind, _PLAIN)
