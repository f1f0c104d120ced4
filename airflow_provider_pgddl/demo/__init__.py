"""The demo: two embedded clusters, a shop, its writers, and a comparison that trusts nobody.

Nothing of the engine or of its operators imports this; tests use its clusters and writers."""
