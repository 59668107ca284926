"""The implementation of the checks in `fedjax_lab.testing`."""
