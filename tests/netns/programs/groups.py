"""Datagrams to groups and broadcast addresses.

groups.py hear: on 10.77.0.2, tells 10.77.0.1 of each datagram that comes.
groups.py send: on 10.77.0.1, sends such of many sizes by sockets of many kinds, one after the other, and wants to be told of each. Prints how
many were heard, and how many were refused: those that do not fit the device and must not be fragmented."""
import errno, hashlib, select, socket, struct, sys

DATA, TOLD = 7701, 7702
V4 = ["239.1.2.3", "224.0.0.1", "10.77.0.255", "255.255.255.255"]
V6 = ["ff15::1", "ff02::1"]
# The last is the largest of IPv4: the kernel has to cut it as well.
SIZES = [1, 2000, 2017, 10000, 60000, 65507]
# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER: never, as the kernel likes (the default), always forbid fragmentation.
DISCOVER = [0, 1, 2]
KINDS = ["device", "source", "connected"]
PATIENCE = 60
index = socket.if_nametoindex("ib0")


def udp(family, port=0):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(PATIENCE)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        s.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(("", port))
    return s


def name(data):
    return b"%d %s" % (len(data), hashlib.sha256(data).hexdigest().encode())


def hear():
    four, six, tell = udp(socket.AF_INET, DATA), udp(socket.AF_INET6, DATA), udp(socket.AF_INET)
    four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4si", socket.inet_aton(V4[0]), bytes(4), index))
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, V6[0]) + struct.pack("i", index))
    while select.select([four, six], [], [], 2 * PATIENCE)[0]:
        for s in select.select([four, six], [], [], 0)[0]:
            tell.sendto(name(s.recv(1 << 16)), ("10.77.0.1", TOLD))


def sender(to, kind, discover):
    v6 = ":" in to
    s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.setsockopt(*((socket.IPPROTO_IPV6, 23) if v6 else (socket.IPPROTO_IP, 10)), discover)
    if kind == "source":
        s.bind(("fd77::1" if v6 else "10.77.0.1", 0))
    else:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"ib0")
    there = (to, DATA, 0, index) if v6 else (to, DATA)
    if kind == "connected":
        s.connect(there)
        return s.send
    return lambda data: s.sendto(data, there)


def send():
    told = udp(socket.AF_INET, TOLD)
    number = refused = 0
    for size in SIZES:
        for to in V4 + V6:
            for kind in KINDS:
                for discover in DISCOVER:
                    number += 1
                    data = (hashlib.sha256(b"%d" % number).digest() * (size // 32 + 1))[:size]
                    what = "%d bytes to %s, socket with %s, discover %d" % (size, to, kind, discover)
                    try:
                        sender(to, kind, discover)(data)
                    except OSError as error:
                        if error.errno != errno.EMSGSIZE or (size, discover) != (SIZES[-1], 2):
                            sys.exit("%s: %s" % (what, error))
                        refused += 1
                        continue
                    try:
                        answer = told.recv(200)
                    except socket.timeout:
                        sys.exit(what + ": nobody heard")
                    if answer != name(data):
                        sys.exit("%s: heard %s" % (what, answer.decode()))
    told.settimeout(0.5)
    try:
        sys.exit("heard twice: " + told.recv(200).decode())
    except socket.timeout:
        print(number - refused, refused)


{"hear": hear, "send": send}[sys.argv[1]]()
