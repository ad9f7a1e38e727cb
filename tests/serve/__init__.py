"""The service over HTTP, as a process that clients connect to."""
