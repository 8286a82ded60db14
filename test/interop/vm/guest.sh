# shellcheck shell=bash
# Functions for scripts that run in the guest; to be sourced.
#
# The guest's one network is a veth pair. A device is put on top of it with device_add, one at a time: rxe0 (RoCEv2)
# or siw0 (iWARP), at 10.9.0.1 and fd09::1. (No traffic ever crosses the pair: siw talks over lo, rxe within itself.)

guest_addr=10.9.0.1
guest_addr6=fd09::1
failures=()
reported=()

network_up() {
	ip link add ve0 type veth peer name ve1
	ip link set ve0 mtu 4500
	ip link set ve1 mtu 4500
	ip addr add $guest_addr/24 dev ve0
	ip addr add $guest_addr6/64 dev ve0 nodad
	ip link set ve0 up
	ip link set ve1 up
}

# device_add TYPE makes TYPE0 (TYPE is rxe or siw) on the pair.
device_add() { rdma link add "$1"0 type "$1" netdev ve0; }

# device_delete TYPE removes it again. In use, that blocks until the last user is gone, so it has a time limit.
device_delete() { timeout 20 rdma link delete "$1"0; }

# resources prints what the kernel holds for user space, one line an object.
resources() {
	local kind
	for kind in qp mr pd cq srq cm_id; do
		rdma resource show "$kind" 2>/dev/null | sed "/comm \[/d; s/^/$kind: /"
	done
}

# step NAME COMMAND... runs a command, says how it ended and how long it took, and remembers a failure.
step() {
	local name=$1 start=$SECONDS status=0
	shift
	printf '=== RUN   %s\n' "$name"
	"$@" || status=$?
	if [[ $status -eq 0 ]]; then
		printf -- '=== PASS  %s (%d s)\n' "$name" $((SECONDS - start))
	else
		printf -- '=== FAIL  %s: status %d (%d s)\n' "$name" "$status" $((SECONDS - start))
		failures+=("$name")
	fi
}

# report is step for what does not decide: a failure is printed, here and in the summary, and no more.
report() {
	local before=${#failures[@]}
	step "$@"
	if [[ ${#failures[@]} -gt $before ]]; then
		reported+=("$1")
		unset "failures[$before]"
	fi
}

# finish prints the summary and exits.
finish() {
	[[ ${#reported[@]} -eq 0 ]] || printf 'REPORTED: %s failed, which does not decide in this run\n' "${reported[@]}"
	if [[ ${#failures[@]} -gt 0 ]]; then
		printf 'FAIL: %s\n' "${failures[@]}"
		exit 1
	fi
	echo "PASS: everything in the guest"
	exit 0
}
