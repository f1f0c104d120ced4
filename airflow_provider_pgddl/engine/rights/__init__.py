"""Nobody gains rights through us: whom we trust, where code of others can be reached, and the wall that it runs behind
(C28)."""
