"""The demo: two embedded clusters, a shop, its writers, and a comparison that trusts nobody."""
