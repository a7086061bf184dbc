"""Ctrl-C and SIGTERM: finish the iteration, save, go."""

import signal
from typing import Any

from genda_mjx.runs.report import Progress


class StopRequest:
    """While it is entered, SIGTERM and Ctrl-C ask the loop to end after the iteration; a second one ends at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self._progress = progress

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.say(f"{signal.Signals(number).name}: finishing the iteration, then saving (again: quit at once)")
