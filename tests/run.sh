#!/usr/bin/env bash
# tests/run.sh [ARGUMENTS OF cargo test]: runs all tests of the workspace. As root on Debian it first installs the programs that some of them
# need and that are missing; elsewhere those tests are skipped. At the end it says what was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# program:package
needed=(ip:iproute2 ping:iputils-ping iperf3:iperf3 curl:curl python3:python3 tshark:tshark ifconfig:net-tools setsid:util-linux cc:gcc qemu-system-x86_64:qemu-system-x86 cpio:cpio
    opensm:opensm ibsim:ibsim-utils saquery:infiniband-diags)
missing=()
for pair in "${needed[@]}"; do
    command -v "${pair%:*}" >/dev/null || missing+=("${pair#*:}")
done
if ((${#missing[@]} > 0)); then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        echo "tests/run.sh: installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "tests/run.sh: missing, tests that need them are skipped: ${missing[*]}"
    fi
fi
# Without it, what devices there are in /dev is the container's affair.
if ((EUID == 0)) && [[ ! -e /dev/net/tun ]]; then
    mkdir -p /dev/net
    mknod /dev/net/tun c 10 200 || echo "tests/run.sh: there is no /dev/net/tun and it cannot be made"
fi

# A test that hangs ends its test binary, and so shows.
host=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER
[[ -v $runner ]] || export "$runner=timeout -k 10 1200"

log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
status=0
# Tests that pass show their output too: it says what was skipped.
cargo test --workspace --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" || status=$?

echo
if grep -q SKIPPED "$log"; then
    echo "tests/run.sh: skipped:"
    grep SKIPPED "$log" | sort | uniq -c
else
    echo "tests/run.sh: nothing was skipped"
fi
# What the failed ones said, once more and last: the way to it is long.
awk '/^failures:$/ { if (!seen) print "tests/run.sh: failed:"; seen = failed = 1 } /^test result:/ { failed = 0 } failed' "$log" | cut -c 1-400 | tail -n 150
grep '^test result:' "$log" | awk '{ passed += $4; failed += $6; ignored += $8 }
    END { printf "tests/run.sh: %d passed, %d failed, %d ignored\n", passed, failed, ignored }'
exit "$status"
