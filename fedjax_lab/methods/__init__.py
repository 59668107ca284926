"""The methods of the library, one short file each, which `registry` finds by its name."""
