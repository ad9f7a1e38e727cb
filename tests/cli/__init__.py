"""The command `tubes`."""
