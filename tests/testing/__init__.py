"""Tests of the pytest plugin and the local servers that tubes offers to users."""
