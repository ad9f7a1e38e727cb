"""How fast is a polite crawl, beside the same by hand?"""
