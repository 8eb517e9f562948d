"""sweep.py ADDRESS FIRST LAST STEP: an echo request of each size, which must not be fragmented. Each is answered, or refused at once with
the MTU of the path. Prints how many of each, and that MTU."""
import errno, os, socket, struct, sys

address, first, last, step = sys.argv[1], *map(int, sys.argv[2:])
v6 = ":" in address
DO = 2
if v6:
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    level, discover, mtu_option, header, request, reply, skip = socket.IPPROTO_IPV6, 23, 24, 48, 128, 129, 0
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    level, discover, mtu_option, header, request, reply, skip = socket.IPPROTO_IP, 10, 14, 28, 8, 0, 20
s.setsockopt(level, discover, DO)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
s.connect((address, 0))
s.settimeout(2)
ident = os.getpid() & 0xffff


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data[:len(data) & ~1])) + (data[-1] << 8 if len(data) & 1 else 0)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def answered(sequence, size):
    """True: answered; False: refused."""
    fill = bytes((sequence + i) & 0xff for i in range(256)) * (size // 256 + 1)
    head = struct.pack("!BBHHH", request, 0, 0, ident, sequence & 0xffff)
    packet = head + fill[:size]
    packet = packet[:2] + struct.pack("!H", 0 if v6 else checksum(packet)) + packet[4:]
    for attempt in range(20):
        try:
            s.send(packet)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            if size + header <= s.getsockopt(level, mtu_option):
                # What was told of an earlier packet.
                continue
            return False
        try:
            while True:
                got = s.recv(70000)[skip:]
                kind, _, _, to, number = struct.unpack("!BBHHH", got[:8])
                if (kind, to, number) == (reply, ident, sequence & 0xffff):
                    assert got[8:] == packet[8:], "%d bytes came back changed" % size
                    return True
        except socket.timeout:
            pass
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
    sys.exit("%d bytes: neither answered nor refused" % size)


good = refused = 0
for sequence, size in enumerate(range(first, last + 1, step)):
    if answered(sequence, size):
        good += 1
        assert not refused, "%d bytes are answered, though fewer were refused" % size
    else:
        refused += 1
print(good, refused, s.getsockopt(level, mtu_option))
