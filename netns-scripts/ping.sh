#!/usr/bin/env bash
# ping.sh [COUNT [INTERVAL]]: every host pings every other, IPv4 and IPv6, all at once; fails if one packet is lost.
. "$(dirname "$0")/common.sh"

need_subnet
count=${1:-5} interval=${2:-0.1}
results=$(mktemp -d)
trap 'rm -rf -- "$results"' EXIT
for ((i = 1; i <= hosts; i++)); do
    for ((k = 1; k <= hosts; k++)); do
        ((i != k)) || continue
        for address in "10.77.0.$k" "fd77::$(printf %x "$k")"; do
            in_host "$i" ping -n -q -c "$count" -i "$interval" -W 5 "$address" >"$results/$i-$k-${address//:/_}" 2>&1 &
        done
    done
done
# Each result is read below, so the status of `wait` does not matter.
wait || true
status=0
for ((i = 1; i <= hosts; i++)); do
    for ((k = 1; k <= hosts; k++)); do
        ((i != k)) || continue
        for address in "10.77.0.$k" "fd77::$(printf %x "$k")"; do
            file=$results/$i-$k-${address//:/_}
            if grep -q "^$count packets transmitted, $count received, 0% packet loss" "$file"; then
                echo "host $i -> $address: $count of $count, $(sed -n 's/^rtt //p' "$file")"
            else
                echo "host $i -> $address: FAILED" && sed 's/^/  /' "$file"
                status=1
            fi
        done
    done
done
exit $status
