#!/usr/bin/env bash
# iperf.sh [SECONDS [UDP RATE]]: iperf3 between hosts 1 and 2: TCP and UDP, IPv4 and IPv6, both ways; fails if a run does.
. "$(dirname "$0")/common.sh"

need_subnet
((hosts >= 2)) || die "this needs two hosts"
command -v iperf3 >/dev/null || die "there is no \`iperf3\`; install it"
seconds=${1:-2} rate=${2:-100M}
# So that results compare, whatever this host's default is.
congestion=()
if grep -qw cubic /proc/sys/net/ipv4/tcp_available_congestion_control; then congestion=(-C cubic); fi

output=$(mktemp)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -f -- "$output"' EXIT

listening() { [[ -n $(in_host 2 ss -Hltn 'sport = :5201') ]]; }

# run WHAT ADDRESS OPTIONS...: one test, host 1 being the client
run() {
    local what=$1 address=$2
    shift 2
    in_host 2 iperf3 --server --one-off >/dev/null 2>&1 &
    server=$!
    until_true 60 listening || die "iperf3 --server does not listen"
    if ! in_host 1 timeout $((seconds + 120)) iperf3 --client "$address" --time "$seconds" --format m "$@" >"$output" 2>&1; then
        cat "$output" >&2
        die "$what: iperf3 failed"
    fi
    wait "$server" || die "$what: the server of iperf3 failed"
    server=
    # The last line of results is the receiver's.
    echo "$what: $(sed -n 's/^\[ *[0-9]*\] *//; /receiver/h; ${g; s/ *receiver$//p}' "$output")"
    grep -Eq '[1-9][0-9.]* Mbits/sec.*receiver|0\.[0-9]*[1-9][0-9]* Mbits/sec.*receiver' "$output" || die "$what: nothing arrived"
}

for address in 10.77.0.2 fd77::2; do
    run "TCP host 1 -> $address" "$address" "${congestion[@]}"
    run "TCP host 1 <- $address" "$address" "${congestion[@]}" --reverse
    run "UDP host 1 -> $address" "$address" --udp --bitrate "$rate"
    run "UDP host 1 <- $address" "$address" --udp --bitrate "$rate" --reverse
done
