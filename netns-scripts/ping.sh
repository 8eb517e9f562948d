#!/usr/bin/env bash
# ping.sh [COUNT [INTERVAL]]: every host pings every other, IPv4 and IPv6, all at once; fails if one packet is lost.
. "$(dirname "$0")/common.sh"

need_subnet
count=${1:-5} interval=${2:-0.1}
# Without a deadline `ping` waits for the last answers no longer than twice the longest time so far.
deadline=$(awk "BEGIN { print int($count * $interval) + 60 }")
results=$(mktemp -d)
trap 'rm -rf -- "$results"' EXIT
for ((i = 1; i <= hosts; i++)); do
    for ((k = 1; k <= hosts; k++)); do
        ((i != k)) || continue
        for address in "10.77.0.$k" "fd77::$(printf %x "$k")"; do
            in_host "$i" ping -n -c "$count" -i "$interval" -w "$deadline" "$address" >"$results/$i-$k-${address//:/_}" 2>&1 &
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
            # It goes on until so many have come back: of the first ones, all.
            came=$(sed -n 's/.* bytes from .*icmp_seq=\([0-9]*\) .*/\1/p' "$file" | sort -nu | awk "\$1 <= $count" | wc -l)
            if ((came == count)); then
                echo "host $i -> $address: $count of $count, $(sed -n 's/^rtt //p' "$file")"
            else
                echo "host $i -> $address: FAILED: $came of $count" && tail -n 4 "$file" | sed 's/^/  /'
                status=1
            fi
        done
    done
done
exit $status
