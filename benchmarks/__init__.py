"""Benchmarks: a package for each question. See README.md."""
