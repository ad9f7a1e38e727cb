"""What does a store in a folder cost, beside others that need no server?"""
