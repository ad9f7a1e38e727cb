"""The pytest plugin and local servers that users get."""
