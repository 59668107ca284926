"""Comparisons, tables and pictures of finished runs."""
