#!/bin/sh
# Runs the messenger against a real Ceph monitor over TCP on loopback, without
# authentication, and records what the ceph program and the monitor say to each
# other. Needs Debian's ceph-mon and ceph-common; --install gets them (root).
#
#   run.sh [--install] [--record DIR]
#
# --record keeps the recordings, gzipped, for messenger/internal/msgr2/testdata.
set -eu
cd "$(dirname "$0")"
record=
while [ $# -gt 0 ]; do
	case $1 in
	--install)
		apt-get update
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ceph-mon ceph-common
		;;
	--record) record=$2; shift ;;
	*) echo "usage: $0 [--install] [--record DIR]" >&2; exit 2 ;;
	esac
	shift
done
for tool in ceph-mon ceph monmaptool go; do
	command -v $tool >/dev/null || { echo "$0: $tool is not installed; try --install" >&2; exit 1; }
done

port=${CEPH_MON_PORT:-23300} # what the monitor says its address is: the recorder
bind=${CEPH_MON_BIND:-23301} # where it really listens
fsid=8d7f0e60-4c2a-4c2e-9b54-5a6d2f3c1b00
dir=$(mktemp -d)
mon= proxy=
finish() {
	status=$?
	[ -z "$proxy" ] || kill "$proxy" 2>/dev/null || :
	[ -z "$mon" ] || kill "$mon" 2>/dev/null || :
	[ -z "$mon" ] || wait "$mon" 2>/dev/null || :
	if [ $status -ne 0 ] && [ -f "$dir/mon.out" ]; then tail -n 20 "$dir/mon.out" >&2; fi
	rm -rf "$dir"
	exit $status
}
trap finish EXIT INT TERM
mkdir "$dir/data" "$dir/run" "$dir/log" "$dir/recorded"

cat >"$dir/ceph.conf" <<EOF
[global]
fsid = $fsid
auth cluster required = none
auth service required = none
auth client required = none
mon host = [v2:127.0.0.1:$port]
ms bind msgr1 = false
mon data = $dir/data/mon.\$id
mon data avail crit = 1
run dir = $dir/run
admin socket = $dir/run/\$cluster-\$name.asok
pid file = $dir/run/\$name.pid
log file = $dir/log/\$name.log
mon cluster log file = $dir/log/cluster.log
[mon.a]
public addrv = [v2:127.0.0.1:$port]
public bind addr = v2:127.0.0.1:$bind
EOF
monmaptool --create --clobber --addv a "[v2:127.0.0.1:$port]" --fsid $fsid "$dir/monmap" >/dev/null
ceph-mon -c "$dir/ceph.conf" --mkfs -i a --monmap "$dir/monmap"
ceph-mon -c "$dir/ceph.conf" -i a -f >"$dir/mon.out" 2>&1 &
mon=$!
go build -o "$dir/recproxy" ./recproxy
"$dir/recproxy" -listen 127.0.0.1:$port -to 127.0.0.1:$bind -dir "$dir/recorded" -wait 30s &
proxy=$!

echo "== the ceph program and the monitor, recorded"
timeout 60 ceph -c "$dir/ceph.conf" -s
for f in "$dir"/recorded/*.bin; do gzip -9nk "$f"; done
if [ -n "$record" ]; then
	mkdir -p "$record"
	for f in "$dir"/recorded/*.bin.gz; do cp "$f" "$record/mon-status-$(basename "$f")"; done
fi

echo "== the recordings decode, and encode again to the same bytes"
go test -count=1 ../../../messenger/internal/msgr2 -run TestGoldenCaptures/recorded -recorded "$dir/recorded" -v

echo "== this messenger and the monitor; the ceph program and this messenger"
ARGONAUT_CEPH_MON=tcp://127.0.0.1:$port ARGONAUT_CEPH_FSID=$fsid ARGONAUT_CEPH_CONF="$dir/ceph.conf" \
	go test -count=1 -v .
