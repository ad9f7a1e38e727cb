"""Crawls of local hosts, which log their requests."""
