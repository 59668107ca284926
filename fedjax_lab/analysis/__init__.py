"""What is made of finished runs."""
