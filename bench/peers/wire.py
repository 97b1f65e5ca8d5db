"""How many bytes this process has sent and received over TCP, told by the kernel for each of its open connections."""

import os
import socket
import struct

# Places in the kernel's `struct tcp_info`: bytes received, bytes sent, and those of them that were sent again (Linux 4.19).
_RECEIVED = 128
_SENT = 200
_AGAIN = 208


def tcp_bytes():
    """(sent, received) payload bytes of all open TCP connections, or None where the kernel does not tell."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                    continue
                told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            # It closed meanwhile, or is no connection.
            continue
        if len(told) < _AGAIN + 8:
            return None
        sent += struct.unpack_from("<Q", told, _SENT)[0] - struct.unpack_from("<Q", told, _AGAIN)[0]
        received += struct.unpack_from("<Q", told, _RECEIVED)[0]
    return sent, received
