"""Sentences and phrases for people, each made from numbers that the results carry.

Terminal, HTML report and monitor all take their words from here. The functions read findings and
remedies (or what ``result.json`` kept of them) and return plain text: no markup, no raw keys.
"""
