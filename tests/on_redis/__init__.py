"""Tests that need a server: real ones, started and stopped by the tests."""
