"""What the service costs: CPU of its process per request, beside a Starlette that does nothing, on the same server."""
