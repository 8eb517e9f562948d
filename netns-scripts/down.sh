#!/usr/bin/env bash
# down.sh: ends what up.sh started, and only that, and leaves nothing behind. Does nothing if nothing is up.
. "$(dirname "$0")/common.sh"

[[ -e $dir ]] || exit 0
[[ -e $dir/prefix ]] || die "$dir is not a directory of up.sh; left alone"
status=0

# end NAME: asks it to end and waits for that.
end() {
    alive "$1" || return 0
    kill -TERM "$pid" 2>/dev/null || true
    if ! until_true 30 not_alive "$1"; then
        echo "down.sh: $1 (process $pid) did not end within 30 s of SIGTERM; killed" >&2
        status=1
        kill -KILL "$pid" 2>/dev/null || true
        until_true 30 not_alive "$1" || die "process $pid does not end"
    fi
}

# Hosts before the fabric: they leave their groups.
for file in "$dir"/host*.pid "$dir"/fabric.pid; do
    name=${file##*/}
    end "${name%.pid}"
done
# What a killed process could not remove itself.
sockets=/run/ipoib
[[ ! -s $dir/fabric.url ]] || rm -f -- "$sockets/fabric@$(sed 's/.*://' "$dir/fabric.url").sock"
if [[ -e $dir/namespaces ]]; then
    while read -r namespace; do
        rm -f -- "$sockets/ib0@$namespace.sock"
        [[ -e /run/netns/$namespace ]] || continue # Deleted by hand.
        others=$(ip netns pids "$namespace" | tr '\n' ' ')
        [[ -z $others ]] || echo "down.sh: still running in $namespace, left alone: processes $others" >&2
        ip netns delete "$namespace"
    done <"$dir/namespaces"
fi
rm -rf -- "$dir"
exit $status
