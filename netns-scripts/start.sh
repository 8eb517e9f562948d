#!/usr/bin/env bash
# start.sh fabric | K: starts the fabric, or host K, of a subnet that is up, after it was ended by hand; returns once it is up.
. "$(dirname "$0")/common.sh"

need_subnet
case ${1-} in
fabric) start_fabric ;;
[1-9] | [1-9][0-9])
    (($1 <= hosts)) || die "there are $hosts hosts"
    start_host "$1"
    wait_for_host "$1"
    ;;
*) die "usage: start.sh fabric | K" ;;
esac
