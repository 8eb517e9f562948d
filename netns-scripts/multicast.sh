#!/usr/bin/env bash
# multicast.sh: every host pings ff02::1 and all the others answer; each sends to an IPv4 group that it is not in, and all the others hear it.
. "$(dirname "$0")/common.sh"

need_subnet
((hosts >= 2)) || die "this needs two hosts"
command -v python3 >/dev/null || die "there is no \`python3\`; install it"
group=239.1.2.3 port=7777
receivers=()
trap '((${#receivers[@]} == 0)) || kill "${receivers[@]}" 2>/dev/null || true' EXIT

link_local() { ip -n "$prefix$1" -o -6 address show dev ib0 scope link | sed -n 's/.*inet6 \([^/]*\)\/.*/\1/p'; }

# Again and again: a host that has just come up may not be in the group yet.
all_answer() {
    local k
    replies=$(in_host "$1" ping -n -c 2 -i 0.3 -W 2 ff02::1%ib0) || return 1
    for ((k = 1; k <= hosts; k++)); do
        (($1 == k)) || grep -qi "from $(link_local "$k")" <<<"$replies" || return 1
    done
}
for ((i = 1; i <= hosts; i++)); do
    until_true 60 all_answer "$i" || die "host $i: not all answer ff02::1: $replies"
    echo "host $i -> ff02::1: answered by all others"
done

# Waits for one datagram to the group.
receive='
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(sys.argv[1]) + socket.inet_aton(sys.argv[3]))
s.settimeout(120)
while s.recv(100) != sys.argv[4].encode(): pass
'
send='
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[3]))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
s.sendto(sys.argv[4].encode(), (sys.argv[1], int(sys.argv[2])))
'
nobody_waits() {
    local pid
    for pid in "${receivers[@]}"; do ! kill -0 "$pid" 2>/dev/null || return 1; done
}
# Again and again: what is sent before the receivers have joined is lost, as on every network.
send_and_ask() {
    in_host "$1" python3 -c "$send" "$group" "$port" "10.77.0.$1" "from $1"
    nobody_waits
}
for ((i = 1; i <= hosts; i++)); do
    receivers=()
    for ((k = 1; k <= hosts; k++)); do
        ((i != k)) || continue
        in_host "$k" python3 -c "$receive" "$group" "$port" "10.77.0.$k" "from $i" &
        receivers+=($!)
    done
    until_true 60 send_and_ask "$i" || die "host $i: what it sends to $group does not reach everybody"
    for pid in "${receivers[@]}"; do wait "$pid" || die "a receiver of $group failed"; done
    receivers=()
    echo "host $i -> $group: heard by all others"
done
