"""Data sets: their arrays, sources, formats, partitions and downloads."""
