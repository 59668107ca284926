"""The commands: they read arguments, call the other packages, and print."""
