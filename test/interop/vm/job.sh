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

# smoke is what decides in every run: connect, SEND, WRITE, READ, flush, refusals, close.
smoke='TestConformance/^(SendOneSGE|SendManySGEs|SendUnaligned|WriteOneSGE|WriteUnaligned|ReadOneSGE|ReadUnaligned|BothWays'
smoke+='|SelectiveSignalling|NoLostWakeUps|SRQ|FlushSends|FlushReceives|FlushUnconnected|CloseGivesOrphans|CloseInEveryOrder'
smoke+='|PostRefusals|BusyParents|DeregisterWhilePosted|PrivateData|Reject|NobodyListens|Resources)$'

# The rest decides when the run is strict; else it is reported.
rest=report
[[ ! -e strict ]] || rest=step

network_up
for type in rxe siw; do
	export ARGONAUT_RDMA_DEVICE=${type}0 ARGONAUT_RDMA_ADDR=$guest_addr ARGONAUT_RDMA_ADDR6=$guest_addr6
	step "$type/add" device_add "$type"
	step "$type/rping" rping_pair
	for binary in bin/*.test; do
		[[ -e $binary ]] || continue
		name=$(basename "$binary" .test)
		step "$type/$name: smoke" timeout 300 "$binary" -test.v -test.short -test.timeout 290s -test.run "$smoke"
		step "$type/$name: smoke: nothing left" no_resources
		$rest "$type/$name" timeout 400 "$binary" -test.v -test.short -test.timeout 390s
		$rest "$type/$name: nothing left" no_resources
	done
	$rest "$type/delete" device_delete "$type"
done
finish
