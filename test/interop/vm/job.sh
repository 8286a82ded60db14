#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions that only step calls
# What runs in the guest: everything in here once on rxe and once on siw. The script run puts it into the job
# directory.
set -uo pipefail
cd /run/job || exit
# shellcheck source-path=SCRIPTDIR source=guest.sh
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

# no_resources fails with a list of what the kernel still holds for processes that have ended.
no_resources() { diff /dev/null <(resources); }

network_up
for type in rxe siw; do
	export ARGONAUT_RDMA_DEVICE=${type}0 ARGONAUT_RDMA_ADDR=$guest_addr ARGONAUT_RDMA_ADDR6=$guest_addr6
	step "$type/add" device_add "$type"
	step "$type/rping" rping_pair
	for binary in bin/*.test; do
		[[ -e $binary ]] || continue
		name=$(basename "$binary" .test)
		step "$type/$name" timeout 900 "$binary" -test.v -test.short -test.timeout 890s
		step "$type/$name: nothing left" no_resources
	done
	step "$type/delete" device_delete "$type"
done
finish
