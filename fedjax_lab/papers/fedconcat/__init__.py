"""What only FedConcat needs."""
