"""Rows: chunks, COPY transfer, windows, checksums."""
