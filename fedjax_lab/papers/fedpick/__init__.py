"""What only FedPick needs."""
