"""The one error type of the lab: a message for a person, never a traceback."""


class LabError(Exception):
    """Says what is wrong and what to do about it."""
