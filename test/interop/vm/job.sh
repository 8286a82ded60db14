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
# From memory programs start in a fraction of the time: the job directory is not cached.
cp -r bin /run/tmp/bin
bin=/run/tmp/bin

# suite TYPE PACKAGE runs the tests of a package on the device, in the package's directory, and holds those that skipped
# against skips/PACKAGE and skips/PACKAGE.TYPE: a skip that is not listed fails, and so does a listed one that ran.
# (The conformance suite does that for its subtests itself.) Those that have nothing to do with a device, in
# elsewhere/PACKAGE, are not run: under emulation they take long.
suite() {
	local type=$1 package=$2 name=${2//\//-} status=0 log elsewhere limit=590s
	[[ ${strict-1} = 1 || " ${packages[*]} " = *" $package "* ]] || limit=150s
	log=/run/tmp/$name.log
	elsewhere=$(sed '/^#/d; s/.*/^&$/' "elsewhere/$name" 2>/dev/null | paste -sd '|')
	(cd "$root/$package" && timeout 600 "$bin/$name.test" -test.v -test.short -test.timeout "$limit" \
		${elsewhere:+-test.skip "$elsewhere"} ${tests:+-test.run "$tests"} 2>&1) | tee "$log" || status=$?
	[[ -z $tests ]] || return "$status"
	diff <(cat "skips/$name" "skips/$name.$type" 2>/dev/null | sed 's/ *#.*//; /^$/d' | sort) \
		<(sed -n 's/^ *--- SKIP: \([^ ]*\) .*/\1/p' "$log" | grep -v '^TestConformance/' | sort) |
		sed -n 's/^< /suite: listed as skipped, but ran: /p; s/^> /suite: unexpected skip: /p' | tee "$log.skips"
	[[ ! -s $log.skips && $status -eq 0 ]]
}

# delivery lets four messengers send to one another while their connections are cut.
delivery() {
	local limit=1790s
	[[ ${strict-1} = 1 ]] || limit=200s
	ARGONAUT_DELIVERY_MESSAGES=$messages ARGONAUT_DELIVERY_MAX=262144 ARGONAUT_DELIVERY_LARGE=0 \
		passes 'TestDeliveryUnderFire/device$' timeout 1800 "$bin/messenger.test" -test.timeout "$limit"
}

# cgroup_limits makes objects of every kind until there are no more to be had.
cgroup_limits() { passes '^TestLimitOfCgroup$' "$bin/verbs-ibverbs.test" -test.timeout 60s; }

# passes TESTS COMMAND... runs these tests of a test binary; that there are none, or that they skip, is a failure.
passes() {
	local tests=$1
	shift
	"$@" -test.v -test.run "$tests" | tee /run/tmp/passes.log || return
	grep -q '^--- PASS: ' /run/tmp/passes.log && ! grep -q -- '--- SKIP: ' /run/tmp/passes.log
}

network_up
echo 8 >/proc/sys/vm/nr_hugepages # of 2 MiB, for the tests that want some
for type in $devices; do
	export ARGONAUT_KILL_ROUNDS=2 ARGONAUT_FAULT_STRIDE=$([[ ${strict-1} = 1 ]] && echo 1 || echo 7)
	export ARGONAUT_RDMA_DEVICE=${type}0 ARGONAUT_RDMA_ADDR=$guest_addr ARGONAUT_RDMA_ADDR6=$guest_addr6
	always step "$type/add" device_add "$type"
	if [[ -n $bench ]]; then
		step "$type/bench" "$bin/perf" -device "${type}0" -addr "$guest_addr" -runs "$bench" -only "$tests"
		always step "$type/delete" device_delete "$type"
		continue
	fi
	step "$type/rping" rping_pair
	step "$type/rping: our client" rping_client "${type}0"
	step "$type/rping: our server" rping_server "${type}0"
	if [[ $type = siw ]]; then
		step "$type/rping: our client, adapter in software" rping_client iwarp
		step "$type/rping: our server, adapter in software" rping_server iwarp
		step "$type/exchange, the adapter in software dials" exchange "${type}0" iwarp
		step "$type/exchange, the adapter in software accepts" exchange iwarp "${type}0"
	fi
	[[ $type != rxe ]] || step "$type/pingpong, out of band" pingpong "${type}0"
	step "$type/memlock" memlock "$type"
	for package in "${packages[@]}"; do
		step "$type/$package" suite "$type" "$package"
	done
	until=$((SECONDS + 100)) # where the run is not strict
	report "$type/delivery" delivery
	for package in "${long[@]}"; do
		report "$type/$package" suite "$type" "$package"
	done
	report "$type/waves" timeout 300 "$bin/waves" -device "${type}0" -addr "$guest_addr"
	report "$type/perf" timeout 300 "$bin/perf" -device "${type}0" -addr "$guest_addr" -short -runs "$([[ ${strict-1} = 1 ]] && echo 3 || echo 1)"
	step "$type/removed" removed "$type" # and added again, to be deleted in peace
	[[ $(rdma link show) == *"${type}0"* ]] || device_add "$type"
	always step "$type/delete" device_delete "$type"
	step "$type/no device" no_device "$type"
done
if [[ -z $bench && (-z ${only-} || 'rxe/limits of a cgroup' =~ $only || 'siw/limits of a cgroup' =~ $only) ]]; then
	# Last of all, and the devices are not deleted any more: when one goes whose cgroup had a limit and is gone, the kernel
	# (6.1) finds its list corrupted, and panics. So each has an end of the pair.
	export ARGONAUT_RDMA_DEVICE=rxe0 ARGONAUT_RDMA_ADDR=$guest_addr
	always step "rxe/add, for the limits" device_add rxe
	step "rxe/limits of a cgroup" cgroup_limits
	ip addr add 10.9.1.1/24 dev ve1
	export ARGONAUT_RDMA_DEVICE=siw0 ARGONAUT_RDMA_ADDR=10.9.1.1
	always step "siw/add, for the limits" device_add siw ve1
	step "siw/limits of a cgroup" cgroup_limits
fi
finish
