"""talk.py serve: takes TCP streams at port 9100, of which it answers the digest, and sends datagrams back from there; IPv4 and IPv6.
talk.py stream ADDRESS MEGABYTES [MEGABYTES PER SECOND]: sends a stream; fails unless the digest is right. With "on" for MEGABYTES it goes on
until its input ends.
talk.py datagrams ADDRESS SIZE COUNT: sends datagrams one after the other; fails unless each comes back whole."""
import hashlib, itertools, random, select, socket, sys, threading, time

PORT = 9100


def serve():
    listener = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    echo.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    echo.bind(("::", PORT))

    def send_back():
        while True:
            data, source = echo.recvfrom(65536)
            try:
                echo.sendto(data, source)
            except OSError:
                pass  # Too long for the path, as is known only now: whoever asks does so again.

    threading.Thread(target=send_back, daemon=True).start()

    def digest(connection):
        sum = hashlib.sha256()
        while data := connection.recv(1 << 18):
            sum.update(data)
        connection.sendall(sum.digest())
        connection.close()

    while True:
        threading.Thread(target=digest, args=(listener.accept()[0],), daemon=True).start()


def stream(address, megabytes, pace=0):
    connection = socket.create_connection((address, PORT), 120)
    connection.settimeout(120)
    sum, noise, begin = hashlib.sha256(), random.Random(7), time.monotonic()
    on = megabytes == "on"
    for done in itertools.count() if on else range(4 * int(megabytes)):
        if on and select.select([sys.stdin], [], [], 0)[0]:
            break
        block = noise.randbytes(1 << 18)
        sum.update(block)
        connection.sendall(block)
        if pace:
            time.sleep(max(0, begin + done / 4 / float(pace) - time.monotonic()))
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while len(answer) < 32 and (data := connection.recv(32)):
        answer += data
    assert answer == sum.digest(), "the stream arrived changed"


def datagrams(address, size, count):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.connect((address, PORT))
    s.settimeout(2)
    for number in range(int(count)):
        data = random.Random(number).randbytes(int(size))
        for attempt in range(20):
            try:
                s.send(data)
                if s.recv(65536) == data:
                    break
            except OSError:
                pass  # The path may take less than was thought: the kernel cuts the next one accordingly.
        else:
            sys.exit("datagram %d did not come back" % number)


{"serve": serve, "stream": stream, "datagrams": datagrams}[sys.argv[1]](*sys.argv[2:])
