"""The one door to the journal, a module a subject: `pipelines` has the pipeline's row and opens the sections (tables,
chunks, windows, verification, …); `ddl` has captured events, `schema` the gate's verdicts, `lease` who may write,
`control` what a person has told the runs, `migrations` the versioned sets of SQL.

Statements that move rows, or that act on users' tables, do not belong here. A row is a dataclass, read by the names of
its columns."""
