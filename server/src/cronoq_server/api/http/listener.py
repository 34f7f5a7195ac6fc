"""Where the server speaks HTTP, and how it behaves there as leader and as standby.

One listener lives as long as the process, whatever the role: probes are always answered. On a
standby every connection is closed about a second after it was accepted, and every answer says so;
a leader that steps down closes its connections when their answers are out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
from typing import Any, Final

from uvicorn.config import Config

from cronoq_server.api.http.connection import HEAD_TIMEOUT_S, Connection, Connections
from cronoq_server.api.listener import AddressInUse
from cronoq_server.config import Address, LimitsConfig

BACKLOG: Final = 2048


class HttpListener:
    """One address at which an application is served.

    Attributes:
        address: Where; once it has started, with the real port.
    """

    def __init__(
        self,
        address: Address,
        limits: LimitsConfig,
        app: Any,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepares to listen.

        Args:
            address: Where; port 0 lets the system choose.
            limits: Bounds on connections.
            app: An ASGI application.
            tls: How connections are encrypted; None = they are not. Certificates that are loaded
                into it later are shown from the next connection on.
        """
        self.address = address
        self._tls = tls
        self._config = Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(limits.idle_connection_timeout_s)),
        )
        self._config.load()
        self._state = Connections(limits.max_concurrent_streams, limits.keepalive_interval_s)
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._state.connections)

    def bound(self, most: int) -> None:
        """Takes another bound on connections from now on."""
        self._state.most = most

    async def start(self) -> None:
        """Begins to listen, as a standby.

        Raises:
            AddressInUse: Somebody else listens there.
        """
        loop = asyncio.get_running_loop()
        host, port = self.address
        try:
            self._server = await loop.create_server(
                self._connection,
                host,
                port,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=HEAD_TIMEOUT_S if self._tls else None,
            )
        except OSError as error:
            if error.errno is None:  # asyncio puts several into one
                error = OSError(errno.EADDRINUSE, str(error))
            raise AddressInUse(self.address, error) from error
        self.address = Address(host, self._server.sockets[0].getsockname()[1])

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, {})

    def lead(self) -> None:
        """Lets connections stay from now on."""
        self._state.is_leading = True

    def stand_by(self) -> None:
        """Closes connections from now on, those that are open as soon as they are answered."""
        if self._state.is_leading:
            self._state.is_leading = False
            self._close_all()

    async def close(self, grace_s: float) -> None:
        """Takes no connections any more; answers under way get `grace_s` seconds."""
        if self._server is None:
            return
        self._server.close()
        self._close_all()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_s)
        tasks = list(self._state.tasks)
        for connection in list(self._state.connections):
            connection.abort()  # type: ignore[union-attr]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), grace_s)

    def _close_all(self) -> None:
        for connection in list(self._state.connections):
            assert isinstance(connection, Connection)
            connection.step_down()
