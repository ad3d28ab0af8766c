"""A link of limited speed in front of a server: a proxy that counts every byte it passes on, TLS and all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from types import TracebackType

_CHUNK = 1 << 14


class Link:
    """Listens on 127.0.0.1 and passes on to `target`; `rate` in bytes a second, each way, None for no limit."""

    def __init__(self, target: int, rate: float | None = None) -> None:
        self.up = self.down = self.port = 0
        self._target, self._rate = target, rate
        self._free = {"up": 0.0, "down": 0.0}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = int(server.sockets[0].getsockname()[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, far_writer, "up"), self._pass(far_reader, writer, "down"))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                setattr(self, way, getattr(self, way) + len(data))
                if self._rate:
                    now = time.monotonic()
                    self._free[way] = max(now, self._free[way]) + len(data) / self._rate
                    await asyncio.sleep(self._free[way] - now)
                sink.write(data)
                await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()
