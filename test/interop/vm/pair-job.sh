#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions that only step calls
# What runs in the two guests of a pair: see the script pair, which puts it into their job directories as job.sh.
set -uo pipefail
cd /run/job || exit
# shellcheck source-path=SCRIPTDIR source=guest.sh
. ./guest.sh
# shellcheck disable=SC1091 # written by pair
. ./settings.sh

# From memory programs start in a fraction of the time: the job directory is not cached.
cp -r bin /run/tmp/bin
bin=/run/tmp/bin

node_addr=10.8.0.1
client_addr=10.8.0.2
store=rdma://$node_addr:7471
port_of() { case $1 in clean) echo 7501 ;; cut) echo 7502 ;; down) echo 7503 ;; lossy) echo 7504 ;; esac; }
messages_of() { case $1 in cut | down) echo 5000 ;; lossy) echo 2000 ;; *) echo 400 ;; esac; }

# link_up ADDR gives the guest its address on the network of the pair, and the device.
link_up() {
	ip addr add "$1/24" dev eth0
	ip link set eth0 up
	rdma link add "${type}0" type "$type" netdev eth0
}

exchange() { "$bin"/exchange -device "${type}0" -n "$(messages_of "$1")" -size 65536 -limit 8m "${@:2}"; }

# netem STATE: "on" has what this guest sends lost, delayed and reordered; "off" ends that, and fails if nothing was lost.
# RoCE sends everything from the gap on again, and gives up at the 7th gap of one message: at 128 KiB, 128 packets here, more
# than a percent of gaps would be too many for it. TCP's packets are larger and fewer. (A jitter of the delay would reorder
# every one of them.)
netem() {
	local said loss=0.3%
	[[ $type != siw ]] || loss=1%
	if [[ $1 == on ]]; then
		tc qdisc add dev eth0 root netem loss $loss delay 4ms reorder 0.3%
		return
	fi
	said=$(tc -s qdisc show dev eth0)
	echo "$said"
	tc qdisc del dev eth0 root || return
	[[ $said =~ dropped\ ([0-9]+) && ${BASH_REMATCH[1]} -gt 0 ]] || { echo "nothing was lost"; return 1; }
}

# --- the node's guest

# obey does netem as the client's guest asks in the file netem, which the script pair brings, and answers in netem.is.
obey() {
	local asked is=
	while sleep 0.1; do
		asked=$(cat netem 2>/dev/null)
		[[ $asked == on || $asked == off ]] && [[ $asked != "$is" ]] || continue
		is=$asked
		if netem "$asked"; then echo "$asked" >netem.is; else echo failed >netem.is; fi
	done
}

run_node() {
	local phase pids=() status=0 server obeys tries=0
	obey &
	obeys=$!
	"$bin"/storage-node serve --device "${type}0" --listen "$store" --data /run/tmp/objects --arena 64MiB &
	server=$!
	for phase in "${paths[@]}"; do
		exchange "$phase" -addr "rdma://$node_addr:$(port_of "$phase")" -accept &
		pids+=($!)
	done
	for phase in "${pids[@]}"; do wait "$phase" || status=1; done
	until [[ -e stop ]]; do
		sleep 0.5
		if ! kill -0 "$server"; then
			echo "the node has died"
			return 1
		fi
		[[ $((tries += 1)) -lt 1200 ]] || return 1
	done
	kill "$obeys"
	kill -TERM "$server"
	wait "$server" || status=1
	return "$status"
}

# --- the client's guest

client() { "$bin"/storage-node "$1" --device "${type}0" --server "$store" --timeout 60s --arena 32MiB "${@:2}"; }

# reachable waits for the node.
reachable() {
	local tries=0
	until timeout 20 "$bin"/storage-node ls --device "${type}0" --server "$store" --timeout 5s >/dev/null 2>&1; do
		[[ $((tries += 1)) -lt 40 ]] || return 1
		sleep 0.5
	done
}

# objects N SIZE puts and gets N objects. On a path that fails, a transfer may fail, with an error that says so; it is
# then done again, and what comes back is what was stored.
objects() {
	local i tries
	for ((i = 0; i < $1; i++)); do
		head -c "$2" /dev/urandom >/run/tmp/in
		rm -f /run/tmp/out
		tries=0
		until client put "object/$i" /run/tmp/in 2>/run/tmp/err && client get "object/$i" /run/tmp/out 2>/run/tmp/err; do
			sed 's/^/failed and done again: /' /run/tmp/err
			grep -q '^storage-node: error: ' /run/tmp/err || return 1
			! grep -q 'goroutine ' /run/tmp/err || return 1
			[[ $((tries += 1)) -lt 30 ]] || return 1
		done
		cmp /run/tmp/in /run/tmp/out || return 1
	done
}

# counters prints what the device has counted that is not zero.
counters() {
	local f
	for f in /sys/class/infiniband/"${type}"0/ports/1/hw_counters/*; do
		[[ ! -r $f || $(<"$f") == 0 ]] || printf '%s %s, ' "${f##*/}" "$(<"$f")"
	done 2>/dev/null
	echo
}

# both runs objects and an exchange at a time.
both() {
	local phase=$1 status=0 other
	{
		exchange "$phase" -addr "rdma://$client_addr:$(port_of "$phase")" -peer "rdma://$node_addr:$(port_of "$phase")" |
			tee /run/tmp/exchange.log
	} &
	other=$!
	objects "$2" "$3" || status=1
	wait "$other" || status=1
	counters
	return "$status"
}

path_clean() { both clean 3 8000000; }

# carrier STATE has the script pair plug the cable ("on") or pull it ("off").
carrier() {
	local tries=0
	echo "$1" >carrier
	until [[ $(</sys/class/net/eth0/carrier) == $([[ $1 == on ]] && echo 1 || echo 0) ]]; do
		[[ $((tries += 1)) -lt 100 ]] || { echo "the carrier does not go $1"; return 1; }
		sleep 0.1
	done
}

# administratively STATE sets the interface "up" or "down".
administratively() { ip link set eth0 "$1"; }

# flap DOWN UP takes the path away, again and again, by the commands DOWN and UP, and writes a line for each time to
# /run/tmp/flaps: first, when the exchange is under way, for longer than its messengers wait for one another (3 s), then for
# a second. (More often than rdma_cm asks again, every 4 s, few new connections would come about.)
flap() {
	local away=8
	until grep -q 'under way' /run/tmp/exchange.log; do sleep 0.1; done
	while :; do
		if $1; then echo "$1" >>/run/tmp/flaps; fi
		sleep $away
		$2
		away=1
		sleep 12
	done
}

# interrupted PHASE DOWN UP is both while the path flaps; that it never did, or that the exchange never connected again, is a
# failure.
interrupted() {
	local status=0 flapper
	: >/run/tmp/flaps
	: >/run/tmp/exchange.log
	flap "$2" "$3" &
	flapper=$!
	both "$1" 3 4000000 || status=1
	kill "$flapper" 2>/dev/null
	wait "$flapper" 2>/dev/null
	$3 || status=1
	echo "the path was taken away $(wc -l </run/tmp/flaps) times"
	[[ -s /run/tmp/flaps ]] || status=1
	grep -Eq 'connections made again [1-9]' /run/tmp/exchange.log || { echo "the exchange did not connect again"; status=1; }
	return "$status"
}

path_cut() { interrupted cut "carrier off" "carrier on"; }

# path_down is not for rxe of Linux 6.1: without a route its QP 1 fails and is never put right, so that the connection
# manager is deaf until the device is made anew.
path_down() { interrupted down "administratively down" "administratively up"; }

# nodes_netem STATE has the node's guest do netem.
nodes_netem() {
	local tries=0
	echo "$1" >netem
	until [[ $(cat netem.is 2>/dev/null) == "$1" ]]; do
		[[ $(cat netem.is 2>/dev/null) != failed && $((tries += 1)) -lt 100 ]] || { echo "netem $1 failed in the node's guest"; return 1; }
		sleep 0.1
	done
}

# path_lossy has the path lose, delay and reorder, in both directions.
path_lossy() {
	local status=0
	netem on && nodes_netem on || return 1
	both lossy 2 1000000 || status=1
	nodes_netem off || status=1
	netem off || status=1
	return "$status"
}

ip link show eth0 >/dev/null || exit 1
if [[ $role == node ]]; then
	always step "$type/node/add" link_up $node_addr
	step "$type/node" run_node
else
	always step "$type/client/add" link_up $client_addr
	step "$type/client/reachable" reachable
	for phase in "${paths[@]}"; do step "$type/client/$phase" "path_$phase"; done
fi
always step "$type/$role/delete" device_delete "$type"
finish
