"""Helpers of several test folders: servers, processes, proxies, ledgers and a naive model of a tube."""
