#!/usr/bin/env bash
# What runs in the guest: everything in here once on rxe and once on siw. The script run puts it into the job directory.
set -uo pipefail
# shellcheck disable=SC2317 # functions that only step calls
cd /run/job || exit
. ./guest.sh

# listening is true once some connection identifier listens.
listening() { [[ $(rdma resource show cm_id) == *'state LISTEN'* ]]; }

# rping_pair lets the rping of rdmacm-utils talk to itself: if that fails, the guest is broken and not our code.
rping_pair() {
	local server status=0 tries=0
	timeout 60 rping -s -a "$guest_addr" -C 5 &
	server=$!
	until listening || [[ $((tries += 1)) -gt 100 ]]; do sleep 0.1; done
	timeout 60 rping -c -a "$guest_addr" -C 5 -v || status=$?
	[[ $status -eq 0 ]] || kill "$server"
	wait "$server" && return "$status"
}

# same_resources compares what the kernel holds now with what it held when the device was new.
same_resources() { diff "$TMPDIR/resources" <(resources); }

network_up
for type in rxe siw; do
	export ARGONAUT_RDMA_DEVICE=${type}0 ARGONAUT_RDMA_ADDR=$guest_addr ARGONAUT_RDMA_ADDR6=$guest_addr6
	step "$type/add" device_add "$type"
	resources >"$TMPDIR/resources"
	step "$type/rping" rping_pair
	for binary in bin/*.test; do
		[[ -e $binary ]] || continue
		name=$(basename "$binary" .test)
		step "$type/$name" timeout 300 "$binary" -test.v -test.timeout 280s
		step "$type/$name: nothing left" same_resources
	done
	step "$type/delete" device_delete "$type"
done
finish
