"""What `fedjax_lab.testing` offers."""
