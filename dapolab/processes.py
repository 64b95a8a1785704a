"""Work in local processes that leave ctrl-C to the one that began them, and end when it does.

A worker that is interrupted by itself, even while it starts, prints a traceback of its own. And one
whose parent was killed outright is told nothing: it waits for work, or for somebody to read its
result, and keeps its memory for ever.
"""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from joblib import Parallel, parallel_config

_EVERY_S = 1.0


def end_with(parent: int) -> None:
    """End this process soon after the one of id ``parent``, which began it, has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_processes(
    work: Iterable[Any], *, n_jobs: int, ordered: bool = True, batch_size: int | str = "auto"
) -> Iterator[Any]:
    """Yield the results of joblib's ``delayed`` calls.

    Parameters
    ----------
    n_jobs : processes; −1 for as many as there are cores.
    ordered : as the calls are, else as they come.
    batch_size : of ``joblib.Parallel``.
    """
    return_as = "generator" if ordered else "generator_unordered"
    # the id as an argument: joblib keeps workers from call to call only if these are equal
    with parallel_config("loky", initializer=end_with, initargs=(os.getpid(),)):
        parallel = Parallel(n_jobs=n_jobs, return_as=return_as, batch_size=batch_size)
    with _interrupts_ignored():
        results = parallel(work)  # begins the processes
    yield from results


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore ctrl-C for the block, a fraction of a second: what begins there inherits it.

    A mask would be inherited too, and lose no ctrl-C, but joblib's tracker of resources lifts it.
    """
    if threading.current_thread() is not threading.main_thread():  # others may not set a signal
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
