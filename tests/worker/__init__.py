"""Tests of workers: fetching, handling, renewing leases, stopping."""
