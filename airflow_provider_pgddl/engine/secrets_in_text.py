"""What of a connection string is shown to nobody, and how it is kept out of messages and out of what people write."""

from __future__ import annotations

import re
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

SECRET_KEYWORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

# The value of a variable, of a template or of a command is none that stands there.
_LITERAL = re.compile(
    r"""(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/:@'"]*:(?![$%`{<])[^\s/@'"]+@
      | --passw(?:or)?d\s+(?![$%`{<-]|(?:env|file|prompt|stdin)\b)\S
      | passw(?:or)?d["']?\s*=\s*["']?(?![$%`{<]|[\w.]+[(\[])\w
      | -D[\w.]*(?:secret(?:[._]?key)?|token|access[._]?key|passphrase|(?:client\.secret|account\.key)\.[\w.-]+)
        =(?![$%`{<])\w""",
    re.IGNORECASE | re.VERBOSE,
)
_IN_URI = re.compile(rf"://[^\s/@]*?:([^\s/@]+)@|[?&](?:{'|'.join(SECRET_KEYWORDS)})=([^\s&]+)")


def has_literal_password(text: str) -> bool:
    """Whether a text, such as the words of a command or options of Java, has a password in it."""
    return _LITERAL.search(text) is not None


def without_secrets(text: str, *dsns: str) -> str:
    """`text` with `***` for whatever of these connection strings is secret: the whole of one that cannot be read."""
    secrets = {secret for dsn in dsns for secret in _secrets(dsn)}
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, "***")
    return text


def _secrets(dsn: str) -> set[str]:
    """As they are, and as a URI or a conninfo spells them."""
    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        return {dsn} - {""}
    plain = [str(parts[keyword]) for keyword in SECRET_KEYWORDS if parts.get(keyword)]
    escaped = [secret.replace("\\", "\\\\").replace("'", "\\'") for secret in plain]
    written = [part for found in _IN_URI.findall(dsn) for part in found if part]
    return {*plain, *escaped, *written, *(quote(secret, safe="") for secret in plain)}
