"""Tasks that are posted to URLs."""
