"""Workers: fetching, handling, renewing leases, stopping."""
