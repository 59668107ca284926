"""Every method of the library, one short file each; registry.py lists them."""
