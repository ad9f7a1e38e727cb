"""Parts on their own, and the machine beside a naive model."""
