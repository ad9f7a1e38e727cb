"""Crawls of local hosts, which keep a log of their requests."""
