"""Which store a setting names."""

from __future__ import annotations

import msgspec

from cronoq_server.stores.base import Store
from cronoq_server.stores.memory import MemoryDisk, MemoryStore


class StoreSettings(msgspec.Struct, frozen=True):
    """What `open_store` has to know.

    Attributes:
        kind: `memory`.
        finished_max: Finished tasks that the memory store keeps.
        cache_bytes: Outputs that the memory store keeps, in bytes.
    """

    kind: str = "memory"
    finished_max: int = 1_000_000
    cache_bytes: int = 64 * 1024 * 1024


def open_store(settings: StoreSettings) -> Store:
    """Opens the store that the settings name.

    Raises:
        ValueError: There is no store of this kind.
    """
    if settings.kind == "memory":
        disk = MemoryDisk(settings.finished_max, settings.cache_bytes)
        return MemoryStore(disk)
    raise ValueError(f"there is no store of kind {settings.kind!r}; there is: memory")
