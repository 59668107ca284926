"""Fetches published data sets: addresses, downloads, archives."""
