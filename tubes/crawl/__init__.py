"""Schedulers for crawlers whose lanes are hosts, so that all processes of a crawl share one politeness.

May import `tubes`. Each module needs an extra of its own and is imported by its full name: `tubes.crawl.scrapy`.
"""
