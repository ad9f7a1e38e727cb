"""Schedulers for crawlers: each host is a lane, so all processes of a crawl together respect its rate limit.

May import `tubes`. Each module needs its own extra and is imported by its full name: `tubes.crawl.scrapy`.
"""
