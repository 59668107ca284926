"""Runs whose clients' state or examples are on the host, because the devices cannot hold them."""
