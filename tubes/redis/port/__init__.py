"""The methods of one connection on one tube: each runs one script, in threads or on an event loop."""
