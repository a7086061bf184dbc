"""Ctrl-C, SIGTERM, a closed terminal: finish the iteration, save, go."""

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


def hang_ups() -> tuple[signal.Signals, ...]:
    """The signal of a closed terminal, unless it is to be ignored (nohup). It may come twice, from kernel and shell."""
    number = getattr(signal, "SIGHUP", None)
    return () if number is None or signal.getsignal(number) == signal.SIG_IGN else (number,)


class StopRequest:
    """While it is entered, SIGTERM and Ctrl-C ask the loop to end after the iteration; a second one ends at once.

    A closed terminal asks too, and so does a pipe that nobody reads any more.
    """

    def __init__(self, progress: Progress):
        self._signalled = False
        self._progress = progress

    @property
    def asked(self) -> bool:
        return self._signalled or self._progress.cut_off

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in (*STOPS, *hang_ups())}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if not self._signalled:
            self._signalled = True
            text = f"{signal.Signals(number).name}: finishing the iteration, then saving (again: quit at once)"
            # In a thread, as the main one may be in the middle of a line and has its lock.
            threading.Thread(target=self._progress.say, args=(text,)).start()
        elif number in STOPS:
            raise KeyboardInterrupt


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
