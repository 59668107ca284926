"""The attacks: a file has the attack of its own name. Shared parts begin with an underscore."""
