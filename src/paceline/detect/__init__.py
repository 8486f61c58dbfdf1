"""Online: when did a job become slow, and is it sure?"""
