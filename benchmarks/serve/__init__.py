"""The cost of the service: CPU per request, relative to a Starlette app that does nothing, on the same server."""
