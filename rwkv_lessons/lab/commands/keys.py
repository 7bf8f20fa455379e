"""Single keys from a terminal, without Enter."""

import contextlib
import sys
import time


@contextlib.contextmanager
def keys():
    """pressed(seconds) → the next key, or "" where none came in that time; None at the end."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield _of_windows
        return
    import os
    import select

    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)

    def pressed(seconds):
        ready, _, _ = select.select([stream], [], [], seconds)
        if not ready:
            return ""
        return os.read(stream, 1).decode(errors="replace") or None

    try:
        tty.setcbreak(stream)
        yield pressed
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _of_windows(seconds):
    import msvcrt

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if msvcrt.kbhit():
            return msvcrt.getwch()
        time.sleep(0.02)
    return ""
