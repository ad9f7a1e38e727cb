"""How soon the handlers of cancelled tasks end, and the cost of checkpoints."""
