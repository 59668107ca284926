"""The methods of the library, one short file each; `registry` lists them."""
