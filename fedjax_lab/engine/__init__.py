"""How a simulation runs on devices: placement, compilation, and the states of all seeds."""
