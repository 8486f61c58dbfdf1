"""The finished report document of a job: its fields, its words, its schema.

Terminal, pages, monitor and fleet read it, and need no analysis.
"""
