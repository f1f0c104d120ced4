"""The pipeline file: its keys (`model`), how it is read, what contradicts itself in it, which tables its patterns take,
and how a database's dsn is resolved without a secret in any message (`endpoint`).

What a key does belongs to whoever does it; whether servers can do it, to `preflight`."""
