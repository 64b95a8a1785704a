"""Write a file so that no reader ever sees half of it."""

import os
import uuid
from pathlib import Path


def temporary_beside(path: Path) -> Path:
    """Return a hidden, unused name in the same folder (a rename across disks is not atomic)."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable; a no-op where a folder cannot be opened (Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path | str, content: bytes | str) -> Path:
    """Write ``content`` to ``path``: temporary name in the same folder, fsync, rename.

    The folder is made where missing. An existing file is replaced whole. Whatever interrupts the
    write (a full disk, Ctrl-C) leaves the old file, and no temporary one. Text is UTF-8 with the
    line ends it has.

    Returns
    -------
    Path : the file written.

    Raises
    ------
    OSError : the folder cannot be made or written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    temporary = temporary_beside(target)
    try:
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
    return target
