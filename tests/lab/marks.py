"""Tells a guest's messages to the host apart from its job's output, on one stream.

A message ("mark") is RS "lab:" TOKEN ":" VERB [" " ARGUMENT] LF. The token is
a nonce, so that no job prints a mark by accident.
"""


class MarkReader:
    """Fed with the stream in any pieces; gives output as soon as it cannot be a mark."""

    def __init__(self, token):
        self.start = b"\x1elab:" + token.encode() + b":"
        self.held = b""

    def feed(self, data):
        """(job output, [(verb, argument)])"""
        output, marks = b"", []
        rest = self.held + data
        while True:
            before, start, rest = rest.partition(self.start)
            if not start:
                self.held = self._possible_start(before)
                return output + before[:len(before) - len(self.held)], marks
            output += before
            line, end, after = rest.partition(b"\n")
            if not end:
                self.held = start + line
                return output, marks
            verb, _, argument = line.decode(errors="replace").partition(" ")
            marks.append((verb, argument))
            rest = after

    def _possible_start(self, data):
        lengths = range(min(len(self.start) - 1, len(data)), 0, -1)
        return next((self.start[:n] for n in lengths if data.endswith(self.start[:n])), b"")
