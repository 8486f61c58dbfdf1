"""Sentences and phrases for users, made from the numbers of results.

Terminal, HTML report and monitor use them. The functions read findings and remedies (or their form
in ``result.json``) and return plain text without markup and raw keys.
"""
