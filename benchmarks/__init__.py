"""Benchmarks: one package per question. See README.md."""
