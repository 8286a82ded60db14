#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions that only step calls
# What runs in the guest: everything in here once on rxe and once on siw. The script run puts it into the job
# directory.
set -uo pipefail
cd /run/job || exit
# shellcheck source-path=SCRIPTDIR source=guest.sh
. ./guest.sh
# shellcheck source-path=SCRIPTDIR source=interop.sh
. ./interop.sh
# shellcheck disable=SC1091 # written by run
. ./settings.sh

# suite TYPE PACKAGE runs the tests of a package on the device, in the package's directory, and holds those that skipped
# against skips/PACKAGE and skips/PACKAGE.TYPE: a skip that is not listed fails, and so does a listed one that ran.
# (The conformance suite does that for its subtests itself.)
suite() {
	local type=$1 package=$2 name=${2//\//-} status=0 log
	log=/run/tmp/$name.log
	(cd "$root/$package" && timeout 600 "/run/job/bin/$name.test" -test.v -test.short -test.timeout 580s \
		${tests:+-test.run "$tests"} 2>&1) | tee "$log" || status=$?
	[[ -z $tests ]] || return "$status"
	diff <(cat "skips/$name" "skips/$name.$type" 2>/dev/null | sed 's/ *#.*//; /^$/d' | sort) \
		<(sed -n 's/^ *--- SKIP: \([^ ]*\) .*/\1/p' "$log" | grep -v '^TestConformance/' | sort) |
		sed -n 's/^< /suite: listed as skipped, but ran: /p; s/^> /suite: unexpected skip: /p' | tee "$log.skips"
	[[ ! -s $log.skips && $status -eq 0 ]]
}

network_up
for type in $devices; do
	export ARGONAUT_RDMA_DEVICE=${type}0 ARGONAUT_RDMA_ADDR=$guest_addr ARGONAUT_RDMA_ADDR6=$guest_addr6
	always step "$type/add" device_add "$type"
	step "$type/rping" rping_pair
	step "$type/rping: our client" rping_client "${type}0"
	step "$type/rping: our server" rping_server "${type}0"
	if [[ $type = siw ]]; then
		step "$type/rping: our client, adapter in software" rping_client iwarp
		step "$type/rping: our server, adapter in software" rping_server iwarp
	fi
	step "$type/memlock" memlock "$type"
	for package in "${packages[@]}"; do
		step "$type/$package" suite "$type" "$package"
	done
	step "$type/removed" removed "$type" # and added again, to be deleted in peace
	[[ $(rdma link show) == *"${type}0"* ]] || device_add "$type"
	always step "$type/delete" device_delete "$type"
	step "$type/no device" no_device "$type"
done
finish
