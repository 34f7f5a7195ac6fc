"""How a SQLite file is opened: who may read it, where it may lie, how it is written, its tables.

Everything here blocks; it runs on a store's own threads.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration
from cronoq_server.stores.base import Unavailable, Unusable
from cronoq_server.stores.migrations import pending

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
        *("glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"),
    }
)
"""Types of file systems on which SQLite's journal does not work across hosts."""

_CHECKPOINT_PAGES = 4000
_JOURNAL_BYTES = 64 * 1024 * 1024
_CACHE_KIB = 64 * 1024
_STATEMENTS_CACHED = 256
_VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS cronoq_schema_version (
    version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""


class SqliteSettings(msgspec.Struct, frozen=True):
    """Where a SQLite store lies and how it behaves; durations in nanoseconds.

    Attributes:
        path: The file; made if it is not there.
        full_sync: Whether every commit waits for the disk.
        busy_timeout: How long a lock of another process is waited for.
        lease_ttl: How long a lease lasts.
        lease_renew: How old a lease gets before it is renewed.
        lock_poll: How often a standby looks.
        shard: The shard whose data this is, or None.
    """

    path: str
    full_sync: bool = True
    busy_timeout: Duration = 5 * SECOND
    lease_ttl: Duration = 10 * SECOND
    lease_renew: Duration = 2 * SECOND
    lock_poll: Duration = 500 * MILLISECOND
    shard: int | None = None


def connect(settings: SqliteSettings) -> sqlite3.Connection:
    """Opens the file for writing, and makes it and its tables if need be.

    Raises:
        Unusable: It must not be used as it is.
        Unavailable, sqlite3.Error: It cannot be opened now.
    """
    path = Path(settings.path)
    _refuse_network(path)
    _create(path)
    db = _open(settings, "")
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise Unusable(f"{path}: this file system does not support SQLite's WAL journal")
        db.execute(f"PRAGMA synchronous = {'FULL' if settings.full_sync else 'NORMAL'}")
        db.execute(f"PRAGMA fullfsync = {'ON' if settings.full_sync else 'OFF'}")  # for macOS
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        _migrate(db)
    except (sqlite3.Error, Unusable):
        db.close()
        raise
    return db


def connect_reader(settings: SqliteSettings) -> sqlite3.Connection:
    """Opens the file for reading; it has to be there.

    Raises:
        sqlite3.Error: It cannot be opened now.
    """
    db = _open(settings, "?mode=rw")
    db.execute("PRAGMA query_only = ON")
    return db


def _open(settings: SqliteSettings, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        Path(settings.path).absolute().as_uri() + mode,
        timeout=settings.busy_timeout / SECOND,
        isolation_level=None,
        cached_statements=_STATEMENTS_CACHED,
        uri=True,
    )
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return db


def _create(path: Path) -> None:
    """Makes an empty file that is its owner's alone; SQLite gives its journal the same rights."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unusable(f"{path.parent}: there is no such directory") from error
    except PermissionError as error:
        raise Unusable(f"{path}: this process may not make it: {error.strerror}") from error
    except OSError as error:  # too many open files, a full disk: it may pass
        raise Unavailable(f"{path}: {error.strerror}") from error


def _refuse_network(path: Path) -> None:
    kind = file_system_of(path.resolve().parent)  # a link lies where it leads to
    if kind in NETWORK_FILE_SYSTEMS:
        raise Unusable(
            f"{path} lies on a network file system ({kind}), where SQLite's journal does not work: "
            "use a local disk, or PostgreSQL"
        )


def file_system_of(directory: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that a directory lies on; empty when that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    resolved = directory.resolve()
    found, depth = "", -1
    for line in lines:
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        # Of two mounts on one point the later one hides the other.
        if len(point.parts) >= depth and resolved.is_relative_to(point):
            found, depth = right.split()[0], len(point.parts)
    return found


def _migrate(db: sqlite3.Connection) -> None:
    """Brings the tables to this build's form, one process at a time."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(_VERSION_TABLE)
        for step in pending("sqlite", schema_version(db)):
            for statement in statements(step.statements):
                db.execute(statement)
            db.execute("INSERT INTO cronoq_schema_version (version) VALUES (?)", (step.version,))
        db.execute("COMMIT")
    except (sqlite3.Error, Unusable):
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def schema_version(db: sqlite3.Connection) -> int:
    """The version of the tables; 0 when there are none yet.

    Raises:
        Unusable: It is newer than this build's.
    """
    (version,) = db.execute("SELECT max(version) FROM cronoq_schema_version").fetchone()
    pending("sqlite", version or 0)
    return version or 0


def statements(script: str) -> list[str]:
    """The single statements of a script."""
    found: list[str] = []
    rest = ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    assert not rest.strip(), rest
    return found
