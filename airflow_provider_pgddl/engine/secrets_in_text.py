"""What of a connection string is shown to nobody, and how it is kept out of a message."""

from __future__ import annotations

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

SECRET_KEYWORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


def without_secrets(text: str, *dsns: str) -> str:
    """`text` with `***` for whatever of these connection strings is secret: the whole of one that cannot be read."""
    secrets = {secret for dsn in dsns for secret in _secrets(dsn)}
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, "***")
    return text


def _secrets(dsn: str) -> list[str]:
    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        return [dsn] if dsn else []
    return [str(parts[keyword]) for keyword in SECRET_KEYWORDS if parts.get(keyword)]
