"""The finished report document of a job: its fields, its words, its schema.

Terminal, pages, monitor and fleet read it; none of them needs the analysis that it came from.
"""
