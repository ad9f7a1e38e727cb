"""Failures of processes, connections and servers: every put task must be accounted for."""
