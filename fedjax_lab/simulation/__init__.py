"""What a round and an evaluation compute: pure functions that know no device and no file."""
