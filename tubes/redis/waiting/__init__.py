"""Waiting on a server: for tasks, for room, for events, and until a tube is empty."""
