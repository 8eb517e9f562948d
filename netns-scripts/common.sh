# Shared by the scripts in this folder; sourced, not run. What runs is written down in a directory, so that down.sh ends just that.
#   IPOIB               the program (default: the release build of this checkout, built if need be)
#   IPOIB_NETNS_DIR     the directory (default: ${XDG_RUNTIME_DIR:-/tmp}/ipoib-netns)
#   IPOIB_NETNS_UP      more arguments for `ipoib up` of a host, such as --mode connected; start.sh takes those of up.sh
#   IPOIB_NETNS_PREFIX  how the namespaces' names begin (default: ipoib)
# Files in the directory: prefix, hosts (their number), ipoib (the program), fabric.args, fabric.url, namespaces, and for each of
# fabric, host1, host2, ... NAME.pid ("PID STARTTIME") and NAME.log.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${IPOIB_NETNS_DIR:-${XDG_RUNTIME_DIR:-/tmp}/ipoib-netns}
prefix=${IPOIB_NETNS_PREFIX:-ipoib}
[[ ! -e $dir/prefix ]] || prefix=$(<"$dir/prefix")

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# The subnet that is up, for the scripts that use it: sets `hosts`.
need_subnet() {
    [[ -e $dir/hosts ]] || die "nothing is up in $dir; run $scripts/up.sh 3"
    hosts=$(<"$dir/hosts")
}

# A command in host K's namespace.
in_host() {
    local k=$1
    shift
    ip netns exec "$prefix$k" "$@"
}

# until_true SECONDS COMMAND...: asks again and again.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

# When process PID was started, in ticks since boot: with it a process id is never another process's.
start_time() {
    local stat threads=("/proc/$1/task/"*)
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    stat=${stat##*) } # The name in parentheses may hold spaces.
    # shellcheck disable=SC2086
    set -- $stat
    # A first thread that has ended while others have not is no end: devices and sockets are still there.
    [[ $1 != Z || ${#threads[@]} -gt 1 ]] && echo "${20}"
}

# Does NAME run? Sets `pid`.
alive() {
    local started
    pid=
    [[ -e $dir/$1.pid ]] && read -r pid started <"$dir/$1.pid" && [[ $(start_time "$pid") == "$started" ]]
}

not_alive() { ! alive "$1"; }

# launch NAME ARGUMENTS...: the program in the background.
launch() {
    local name=$1
    shift
    : >"$dir/$name.log"
    setsid "$(<"$dir/ipoib")" "$@" </dev/null >"$dir/$name.log" 2>&1 &
    # No process id file at all if it has ended already: wait_for says so.
    echo "$! $(start_time $! || true)" >"$dir/$name.pid"
}

# wait_for SECONDS NAME COMMAND...: until COMMAND is true, or NAME has ended.
wait_for() {
    local seconds=$1 name=$2
    shift 2
    true_or_ended() { "$@" || not_alive "$name"; }
    if ! until_true "$seconds" true_or_ended "$@" || ! "$@"; then
        echo "${0##*/}: $name did not come up; it said:" >&2
        sed 's/^/  /' "$dir/$name.log" >&2
        return 1
    fi
}

says() { grep -q "$2" "$dir/$1.log"; }

has_carrier() { [[ $(ip -n "$1" -o link show dev ib0 2>/dev/null) == *,LOWER_UP*"state UP"* ]]; }

start_fabric() {
    local args=()
    alive fabric && die "the fabric runs already (process $pid)"
    mapfile -t args <"$dir/fabric.args"
    # Port 0: a free one. After a restart it is the same again, as the hosts know it.
    local listen=udp://127.0.0.1:0
    [[ ! -e $dir/fabric.url ]] || listen=$(<"$dir/fabric.url")
    launch fabric fabric --listen "$listen" "${args[@]}"
    wait_for 60 fabric says fabric 'hosts connect to udp://'
    sed -n 's/.*hosts connect to \(udp:\/\/[^ ]*\).*/\1/p' "$dir/fabric.log" >"$dir/fabric.url"
}

# start_host K, without waiting
start_host() {
    local k=$1
    alive "host$k" && die "host $k runs already (process $pid)"
    launch "host$k" up ib0 --fabric "$(<"$dir/fabric.url")" --netns "$prefix$k" --address "10.77.0.$k/24" --address "fd77::$(printf %x "$k")/64" ${IPOIB_NETNS_UP-$(<"$dir/up.args")}
}

wait_for_host() {
    wait_for 60 "host$1" says "host$1" "^ib0@$prefix$1: up$"
    wait_for 60 "host$1" has_carrier "$prefix$1"
}
