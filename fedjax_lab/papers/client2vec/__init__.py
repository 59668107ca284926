"""What only Client2Vec needs."""
