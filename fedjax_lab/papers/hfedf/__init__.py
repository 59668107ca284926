"""What only hFedF needs."""
