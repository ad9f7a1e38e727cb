"""The speed of polite crawls, compared with a hand-written queue, and the politeness of real spiders."""
