# shellcheck shell=bash disable=SC2154 # guest_addr: of guest.sh; bin: of job.sh
# Steps that set programs of this project against those of others, or against what can go wrong; to be sourced by job.sh.

# listening is true once some connection identifier listens.
listening() { [[ $(rdma resource show cm_id) == *'state LISTEN'* ]]; }

# until_ COMMAND... waits for up to 40 s until a command succeeds.
until_() {
	local tries=0
	until "$@"; do
		[[ $((tries += 1)) -le 400 ]] || return 1
		sleep 0.1
	done
}

# ended PID SECONDS waits until a child has ended and returns its status; it kills one that takes longer.
ended() {
	local tries=0
	while kill -0 "$1" 2>/dev/null; do
		if [[ $((tries += 1)) -gt $(($2 * 10)) ]]; then
			echo "process $1 has not ended within $2 s"
			kill -9 "$1"
			wait "$1"
			return 124
		fi
		sleep 0.1
	done
	wait "$1"
}

# rping_pair lets the rping of rdmacm-utils talk to itself: if that fails, the guest is broken and not our code.
rping_pair() {
	local server status=0
	timeout 60 rping -s -a "$guest_addr" -C 5 &
	server=$!
	until_ listening
	timeout 60 rping -c -a "$guest_addr" -C 5 -v || status=$?
	[[ $status -eq 0 ]] || kill "$server"
	ended "$server" 20 && return "$status"
}

# Sizes, from the smallest that rping takes to the largest, and counts.
rping_cases=("26 1" "64 7" "1000 20" "65535 3")

# same_pings COUNT SERVER CLIENT is true if both logs, which -v made, show the same COUNT pings.
same_pings() {
	[[ $(grep -c '^ping data: rdma-ping-' "$3") -eq $1 ]] || { echo "not $1 pings:"; cut -c 1-100 "$3"; return 1; }
	diff <(sed -n 's/^server ping data: //p' "$2" | cut -c 1-100) <(sed -n 's/^ping data: //p' "$3" | cut -c 1-100)
}

# rping_client DEVICE runs our client on DEVICE against the rping of rdmacm-utils.
rping_client() {
	local case size count server status=0 log=/run/tmp/rping
	for case in "${rping_cases[@]}"; do
		read -r size count <<<"$case"
		timeout 60 rping -s -a "$guest_addr" -C "$count" -S "$size" -V -v >$log.server &
		server=$!
		until_ listening
		"$bin"/rping -c -a "$guest_addr" -C "$count" -S "$size" -V -v -device "$1" -local "$guest_addr" >$log.client || status=$?
		[[ $status -eq 0 ]] || kill "$server"
		ended "$server" 20 || status=$?
		[[ $status -eq 0 ]] || return "$status"
		same_pings "$count" $log.server $log.client || return 1
	done
}

# rping_server DEVICE runs our server on DEVICE against the rping of rdmacm-utils.
rping_server() {
	local case size count server status=0 log=/run/tmp/rping
	for case in "${rping_cases[@]}"; do
		read -r size count <<<"$case"
		rm -f $log.ready
		"$bin"/rping -s -a "$guest_addr" -C "$count" -S "$size" -V -v -device "$1" -local "$guest_addr" -ready $log.ready >$log.server &
		server=$!
		until_ test -e $log.ready
		timeout 60 rping -c -a "$guest_addr" -C "$count" -S "$size" -V -v >$log.client || status=$?
		[[ $status -eq 0 ]] || kill "$server"
		ended "$server" 20 || status=$?
		[[ $status -eq 0 ]] || return "$status"
		same_pings "$count" $log.server $log.client || return 1
	done
}

# exchange ACCEPTS DIALS lets messengers on two devices send each other messages and calls over a lossless session, while
# both cut their connections.
exchange() {
	local first status=0 args=(-n 300 -size 65536 -calls 40 -cut 100 -limit 4m)
	"$bin"/exchange -device "$1" -addr "rdma://$guest_addr:7601" -accept "${args[@]}" &
	first=$!
	"$bin"/exchange -device "$2" -addr "rdma://$guest_addr:7602" -peer "rdma://$guest_addr:7601" "${args[@]}" || status=$?
	[[ $status -eq 0 ]] || kill "$first"
	ended "$first" 60 || status=$?
	return "$status"
}

# gid_index DEVICE prints the entry of the GID table that has the guest's address.
gid_index() {
	local file hex
	hex=$(printf '%02x%02x:%02x%02x' ${guest_addr//./ })
	for file in /sys/class/infiniband/"$1"/ports/1/gids/*; do
		if [[ $(<"$file") == *":ffff:$hex" ]]; then
			basename "$file"
			return
		fi
	done
	return 1
}

# pingpong DEVICE connects queue pairs out of band with the ibv_rc_pingpong of ibverbs-utils, in both roles.
pingpong() {
	local size server status=0 index
	index=$(gid_index "$1") || return 1
	for size in 1 4096 100000; do
		timeout 60 ibv_rc_pingpong -d "$1" -g "$index" -n 50 -s $size &
		server=$!
		until_ socket_listens 18515
		"$bin"/rcpingpong -device "$1" -addr "$guest_addr" -n 50 -s $size "$guest_addr" || status=$?
		[[ $status -eq 0 ]] || kill "$server"
		ended "$server" 20 || status=$?
		[[ $status -eq 0 ]] || return "$status"

		rm -f /run/tmp/pingpong.ready
		"$bin"/rcpingpong -device "$1" -addr "$guest_addr" -n 50 -s $size -ready /run/tmp/pingpong.ready &
		server=$!
		until_ test -e /run/tmp/pingpong.ready
		timeout 60 ibv_rc_pingpong -d "$1" -g "$index" -n 50 -s $size "$guest_addr" || status=$?
		[[ $status -eq 0 ]] || kill "$server"
		ended "$server" 20 || status=$?
		[[ $status -eq 0 ]] || return "$status"
	done
}

# socket_listens PORT is true once a TCP socket listens there.
socket_listens() { grep -Eq "$(printf ":%04X 0+:0000 0A" "$1")" /proc/net/tcp /proc/net/tcp6; }

# says FILE TEXT... is true if every TEXT is in FILE.
says() {
	local file=$1 text
	shift
	for text in "$@"; do
		grep -qF -- "$text" "$file" || { printf 'not said: %s\n' "$text"; return 1; }
	done
}

# locked COMMAND... runs a command as a user who may lock 64 KiB; its output goes to /run/tmp/memlock.out, too.
locked() {
	local status=0
	(
		ulimit -l 64
		timeout 60 setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all "$@"
	) >/run/tmp/memlock.out 2>&1 || status=$?
	cat /run/tmp/memlock.out
	return "$status"
}

# memlock TYPE: a user who may lock 64 KiB gets the number of bytes that an arena needs, and what to do, from a node and
# from doctor.
memlock() {
	local status=0 data=/run/tmp/memlock out=/run/tmp/memlock.out
	chmod 666 /dev/infiniband/*
	rm -rf $data
	mkdir -m 777 $data
	locked "$bin"/storage-node serve --device "${1}0" --listen "$guest_addr:0" --arena 64MiB --data $data/data || status=$?
	[[ $status -eq 1 ]] && says $out RLIMIT_MEMLOCK 67108864 65536 LimitMEMLOCK= || return 1
	status=0
	locked "$bin"/storage-node doctor --device "${1}0" --addr "$guest_addr" --arena 64MiB || status=$?
	[[ $status -eq 1 ]] && grep -Eq '^PROBLEM [0-9]+: the arena of 67108864 bytes: RLIMIT_MEMLOCK allows 65536 bytes, ' $out &&
		says $out "  remedy: set LimitMEMLOCK="
}

# no_device TYPE: without any device, doctor says so (and not that one was lost), with a remedy, and auto takes the adapter
# in software.
no_device() {
	local status=0 out=/run/tmp/nodevice.out
	timeout 60 "$bin"/storage-node doctor --device "${1}0" --addr "$guest_addr" >$out 2>&1 || status=$?
	cat $out
	[[ $status -eq 1 ]] && says $out "usable: NO" "remedy: " "can not be opened: ibverbs: this machine has no RDMA device" || return 1
	! grep -q "device lost" $out || return 1
	timeout 100 "$bin"/storage-node demo --device auto --size 2MiB
}

# filled DIR is true once there are some MiB in a directory.
filled() { [[ $(du -sk "$1" | cut -f 1) -gt 4096 ]]; }

# removed TYPE: the device goes while a node serves and a client puts. The client ends with an error that says so, in time;
# the node says so, lives, and ends when it is told to; and the kernel gets rid of the device.
removed() {
	local node client deleting status=0 log=/run/tmp/removed
	rm -rf $log $log.data
	"$bin"/storage-node serve --device "${1}0" --listen "$guest_addr:7999" --arena 64MiB --data $log.data >$log 2>&1 &
	node=$!
	until_ says $log 'listening rdma://' >/dev/null || return 1
	yes 0123456789abcdef0123456789abcdef 2>/dev/null |
		timeout 60 "$bin"/storage-node put --device "${1}0" --server "$guest_addr:7999" --timeout 10s k - >$log.client 2>&1 &
	client=$!
	until_ filled $log.data || { echo "nothing comes"; cat $log.client; return 1; }
	rdma link delete "${1}0" &
	deleting=$!
	ended "$client" 40 || status=$?
	cat $log.client
	[[ $status -eq 1 ]] || { echo "the client: status $status"; return 1; }
	says $log.client "storage-node: error: " "device lost" || return 1
	until_ says $log "device lost: it was removed or has failed" >/dev/null || { cat $log; echo "the node does not say it"; return 1; }
	kill -0 "$node" || { cat $log; echo "the node has died"; return 1; }
	kill -TERM "$node"
	status=0
	ended "$node" 20 || status=$?
	cat $log
	[[ $status -le 1 ]] || { echo "the node: status $status"; return 1; }
	! grep -q 'panic\|goroutine ' $log $log.client || return 1
	ended "$deleting" 30
}
