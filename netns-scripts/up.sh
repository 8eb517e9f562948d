#!/usr/bin/env bash
# up.sh N [ARGUMENTS OF ipoib fabric]: a fabric and N hosts, each a process; host k has ib0 in the namespace ipoibK,
# with 10.77.0.k/24 and fd77::k/64 (k in hexadecimal there). The hosts' links are UDP on the loopback of the namespace where this runs.
. "$(dirname "$0")/common.sh"

[[ ${1-} =~ ^[1-9][0-9]?$ ]] || die "usage: up.sh N [ARGUMENTS OF ipoib fabric], with N from 1 to 99"
hosts=$1
shift
((EUID == 0)) || die "network namespaces with names need root; try: sudo $0 $hosts"
command -v ip >/dev/null || die "there is no \`ip\`; install iproute2"
[[ ! -e $dir ]] || die "$dir exists: something is up already; run $scripts/down.sh first"
if [[ -z ${IPOIB-} ]]; then
    IPOIB=${CARGO_TARGET_DIR:-$scripts/../target}/release/ipoib
    [[ -x $IPOIB ]] || (cd "$scripts/.." && cargo build --release --bin ipoib)
fi
[[ -x $IPOIB ]] || die "$IPOIB is not a program"

mkdir -m 700 "$dir"
trap 'echo "up.sh: failed, taking everything down" >&2; "$scripts/down.sh"' EXIT
echo "$prefix" >"$dir/prefix"
echo "$hosts" >"$dir/hosts"
realpath "$IPOIB" >"$dir/ipoib"
(($# == 0)) && : >"$dir/fabric.args" || printf '%s\n' "$@" >"$dir/fabric.args"

printf '%s' "${IPOIB_NETNS_UP-}" >"$dir/up.args"

start_fabric
echo "fabric: $(<"$dir/fabric.url")"
for ((k = 1; k <= hosts; k++)); do
    ip netns add "$prefix$k"
    # Only once it is ours: down.sh deletes what is named here.
    echo "$prefix$k" >>"$dir/namespaces"
    ip -n "$prefix$k" link set lo up
    start_host "$k"
done
for ((k = 1; k <= hosts; k++)); do
    wait_for_host "$k"
    echo "host $k: ib0 in namespace $prefix$k, 10.77.0.$k, fd77::$(printf %x "$k")"
done
trap - EXIT
echo "try: ip netns exec ${prefix}1 ping 10.77.0.2; end it with $scripts/down.sh"
