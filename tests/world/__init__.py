"""A world of physical jobs, to judge the product against: it shares no code with Paceline.

``programs`` and ``walk`` simulate a step; ``plant`` says what a job is made of, ``costs`` what its
operations take; ``faults`` and ``noise`` disturb it; ``record`` reads the clocks.
"""
