"""Tests of pushing tasks to URLs."""
