"""The contract on real servers, and random calls on both backends side by side."""
