"""Echo server in Python: calls libmegapipe through ctypes.

    LD_LIBRARY_PATH=DIR/lib python3 echo.py 7000

Port 0 lets the kernel choose; the port is printed. The structure and the constants below repeat
those of megapipe.h: `libmegapipe.so.0` has this layout.

SPDX-License-Identifier: Apache-2.0 OR MIT
"""

import ctypes
import socket
import struct
import sys

MP_ACCEPT, MP_READ, MP_WRITE = 1, 4, 5
MP_ALWAYS = 0xFFFFFFFF
MP_AS_LWSOCKET = 1
MP_FOREVER = -1
READ_BYTES = 16384


class Event(ctypes.Structure):
    """struct mp_event"""

    _fields_ = [
        ("cmd", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("handle", ctypes.c_uint64),
        ("cookie", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("buf", ctypes.c_void_p),
        ("fd", ctypes.c_int32),
        ("pending", ctypes.c_uint32),
        ("connection", ctypes.c_uint64),
        ("expirations", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("lent_index", ctypes.c_uint32),
        ("lent_generation", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 5),
    ]


def load():
    """Loads the library and states the types of the functions used here."""
    library = ctypes.CDLL("libmegapipe.so.0")
    handle, channel = ctypes.c_uint64, ctypes.c_void_p
    address = [ctypes.c_char_p, ctypes.c_uint32]
    library.mp_create.restype = channel
    library.mp_create.argtypes = [ctypes.c_void_p]
    library.mp_listen.restype = handle
    library.mp_listen.argtypes = [channel, *address, ctypes.c_void_p, ctypes.c_void_p]
    library.mp_local_address.argtypes = [
        handle, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32)]
    library.mp_accept.argtypes = [handle, ctypes.c_uint32, ctypes.c_int]
    library.mp_read.argtypes = [handle, ctypes.c_void_p, ctypes.c_size_t]
    library.mp_write.argtypes = [handle, ctypes.c_void_p, ctypes.c_size_t]
    library.mp_unregister.argtypes = [handle, ctypes.c_void_p]
    library.mp_release.argtypes = [ctypes.POINTER(Event)]
    library.mp_dispatch.argtypes = [channel, ctypes.POINTER(Event), ctypes.c_int64]
    library.mp_last_error.restype = ctypes.c_char_p
    return library


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7000
    library = load()

    def check(result):
        if result < 0:
            sys.exit(library.mp_last_error().decode())

    channel = library.mp_create(None)
    if not channel:
        sys.exit(library.mp_last_error().decode())
    # struct sockaddr_in
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), b"\x7f\0\0\x01")
    listener = library.mp_listen(channel, address, len(address), None, None)
    if not listener:
        sys.exit(library.mp_last_error().decode())
    check(library.mp_accept(listener, MP_ALWAYS, MP_AS_LWSOCKET))
    bound, size = ctypes.create_string_buffer(16), ctypes.c_uint32(16)
    check(library.mp_local_address(listener, bound, ctypes.byref(size)))
    print(f"listening on 127.0.0.1:{struct.unpack_from('!H', bound, 2)[0]}", flush=True)
    event = Event()
    while True:
        check(library.mp_dispatch(channel, ctypes.byref(event), MP_FOREVER))
        if event.cmd == MP_ACCEPT and event.error == 0:
            # No buffer: the event lends one.
            check(library.mp_read(event.connection, None, READ_BYTES))
        elif event.cmd == MP_READ and event.error == 0 and event.size > 0:
            check(library.mp_write(event.handle, event.buf, event.size))
            library.mp_release(ctypes.byref(event))
        elif event.cmd == MP_WRITE and event.error == 0:
            check(library.mp_read(event.handle, None, READ_BYTES))
        elif event.cmd in (MP_READ, MP_WRITE):
            library.mp_unregister(event.handle, None)


if __name__ == "__main__":
    main()
