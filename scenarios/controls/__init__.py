"""Clean controls: engines and machines that are slow, busy or interrupted, and nothing is wrong with them.

Whatever is found here is a false alarm. What a file cannot say is a plugin beside it, as with the seeded bugs.
"""
