"""What only FedC2I needs."""
