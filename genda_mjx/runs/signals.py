"""Ctrl-C and SIGTERM: finish the iteration, save, go."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from genda_mjx.runs.report import Progress

STOPS = (signal.SIGINT, signal.SIGTERM)
GRACE = 2.0  # s in which the main thread may still end by itself
QUIT = 130  # exit code after Ctrl-C


class StopRequest:
    """While it is entered, SIGTERM and Ctrl-C ask the loop to end after the iteration; a second one ends at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self._progress = progress

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in STOPS}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.say(f"{signal.Signals(number).name}: finishing the iteration, then saving (again: quit at once)")


@contextlib.contextmanager
def second_signal_quits() -> Iterator[None]:
    """Inside, a second Ctrl-C or SIGTERM ends the process soon, whatever it is doing.

    Python handles signals in the main thread only, and that may be in a compiler or a long program for minutes.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        came = 0
        while number := os.read(reading, 1):
            came += number[0] in STOPS
            if came == 2:
                time.sleep(GRACE)
                os._exit(QUIT)
        os.close(reading)

    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writing)
