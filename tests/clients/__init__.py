"""Clients that nobody here has written: their migrations run on a source while a pipeline moves it."""
