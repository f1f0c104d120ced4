"""All that passes on loopback, to look for secrets in."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Self

import pytest

# Nothing may hide in what is compressed.
OPEN = {
    "spark.broadcast.compress": "false", "spark.rdd.compress": "false", "spark.shuffle.compress": "false",
    "spark.executor.memory": "512m", "spark.ui.enabled": "false",
}  # fmt: skip
ETH_P_ALL = 3


class Wire:
    """All packets from and to these TCP ports on loopback, while the block runs."""

    def __init__(self, *ports: int) -> None:
        self._ports, self._over = set(ports), threading.Event()
        self.said, self.packets = bytearray(), 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ETH_P_ALL))
        except (PermissionError, AttributeError) as error:
            pytest.skip(f"a raw socket on loopback needs CAP_NET_RAW: {error}")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                frame = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            tcp = 14 + 4 * (frame[14] & 15)
            if self._ports & {*struct.unpack("!HH", frame[tcp : tcp + 4])}:
                self.packets += 1
                self.said += frame[tcp + 4 * (frame[tcp + 12] >> 4) :]
