"""Tests of single parts, and of the engine against a naive model."""
