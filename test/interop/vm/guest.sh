# shellcheck shell=bash
# Functions for scripts that run in the guest; to be sourced.
#
# The guest's one network is a veth pair. A device is put on top of it with device_add, one at a time: rxe0 (RoCEv2)
# or siw0 (iWARP), at 10.9.0.1 and fd09::1. (No traffic ever crosses the pair: siw talks over lo, rxe within itself.)

guest_addr=10.9.0.1
guest_addr6=fd09::1
failures=()
passed=()
reported=()
chosen= # 1: "only" has matched a step

network_up() {
	ip link add ve0 type veth peer name ve1
	ip link set ve0 mtu 4500
	ip link set ve1 mtu 4500
	ip addr add $guest_addr/24 dev ve0
	ip addr add $guest_addr6/64 dev ve0 nodad
	ip link set ve0 up
	ip link set ve1 up
}

# device_add TYPE [NETDEV] makes TYPE0 (TYPE is rxe or siw) on the pair.
device_add() { rdma link add "$1"0 type "$1" netdev "${2-ve0}"; }

# device_delete TYPE removes it again. In use, that blocks until the last user is gone, so it has a time limit.
device_delete() { timeout 20 rdma link delete "$1"0; }

# resources prints what the kernel holds for user space, one line an object.
resources() {
	local kind
	for kind in qp mr pd cq srq cm_id; do
		rdma resource show "$kind" 2>/dev/null | sed "/comm \[/d; s/^/$kind: /"
	done
}

# same_resources BEFORE waits until the kernel holds again what it held, and fails with the difference when that takes
# too long. siw keeps a connection that was being made for 10 s.
same_resources() {
	local tries=0
	until [[ $(resources) == "$1" ]]; do
		if [[ $((tries += 1)) -gt 150 ]]; then
			echo "the kernel holds something else than before:"
			diff <(printf '%s\n' "$1") <(resources)
			return 1
		fi
		sleep 0.1
	done
}

# choose NAME tells whether "only" lets a step run.
choose() {
	[[ -n ${only-} ]] || return 0
	[[ $1 =~ $only ]] && chosen=1
}

# step NAME COMMAND... runs a command, says how it ended and how long it took, and remembers a failure. Afterwards the
# kernel must hold for user space what it held before. With "only" set, steps that do not match it are left out.
step() {
	local name=$1 start=$SECONDS status=0 held
	shift
	choose "$name" || return 0
	printf '=== RUN   %s\n' "$name"
	held=$(resources)
	"$@" || status=$?
	same_resources "$held" || status=1
	if [[ $status -eq 0 ]]; then
		printf -- '=== PASS  %s (%d s)\n' "$name" $((SECONDS - start))
		passed+=("$name")
	else
		printf -- '=== FAIL  %s: status %d (%d s)\n' "$name" "$status" $((SECONDS - start))
		failures+=("$name")
	fi
}

# report is step for what does not decide unless "strict" is 1: a failure is printed, here and in the summary, and no
# more; and when SECONDS has come to "until", it is left out.
report() {
	local before=${#failures[@]}
	if [[ ${strict-1} != 1 && $SECONDS -gt ${until-999999} ]] && choose "$1"; then
		reported+=("$1 (left out: no time)")
		return
	fi
	step "$@"
	if [[ ${strict-1} != 1 && ${#failures[@]} -gt $before ]]; then
		reported+=("$1")
		unset "failures[$before]"
	fi
}

# always runs a step whatever "only" says.
always() { only='' "$@"; }

# finish prints the summary and exits. An "only" that no step has matched is a failure.
finish() {
	[[ -z ${only-} || -n $chosen ]] || failures+=("no step matches $only")
	[[ ${#passed[@]} -eq 0 ]] || printf 'ok    %s\n' "${passed[@]}"
	[[ ${#reported[@]} -eq 0 ]] || printf 'REPORTED, does not decide: %s\n' "${reported[@]}"
	if [[ ${#failures[@]} -gt 0 ]]; then
		printf 'FAIL: %s\n' "${failures[@]}"
		exit 1
	fi
	echo "PASS: everything in the guest"
	exit 0
}
