"""Tubes with the option `partitions`: one tube over the nodes of a cluster. See `tubes.partitions.port`."""
