"""The files of a run: configs, metrics, checkpoints, locks, and copies in the cloud."""
