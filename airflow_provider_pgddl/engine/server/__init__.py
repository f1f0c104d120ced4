"""The one way to a session, and what a server says of itself: catalogs, schemas, dumps, lag, locks that are waited for.

Nothing here knows the journal or a pipeline's progress."""
