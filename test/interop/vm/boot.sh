#!/usr/bin/env bash
# Boots the guest, runs a job in it and exits with the job's status.
#
#	usage: boot.sh [-t SECONDS] JOB [QEMU-OPTION...]
#
# JOB is a directory with a script job.sh. The guest sees it, writable, at /run/job, on top of the host's root file
# system, read-only. Its console is streamed to the standard output and kept in JOB/console.log. A guest that ends
# without a status (a panic, a hang, QEMU failing) or is not done after SECONDS (default 600) fails the run: status 125
# and 124.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
limit=600

usage() { sed -n 's/^#\t//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

while getopts t: option; do
	case $option in
	t) limit=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 && -f $1/job.sh ]] || usage
job=$(cd "$1" && pwd)
shift

image=$("$here/image.sh")
rm -f "$job/status"

# Software emulation on purpose: it needs no /dev/kvm, and nested ones hang before the kernel starts. QEMU gets its own
# standard input, so that it can not take the terminal.
qemu=(
	qemu-system-x86_64 -accel "tcg,thread=multi" -cpu max -smp "${ARGONAUT_VM_CPUS:-2}" -m "${ARGONAUT_VM_MEMORY:-4096}"
	-display none -monitor none -serial stdio -nic none -no-reboot
	-kernel "$image/vmlinuz" -initrd "$image/initrd.gz"
	-append "console=ttyS0 quiet panic=-1 oops=panic mitigations=off"
	-fsdev "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
	-device "virtio-9p-pci,fsdev=host,mount_tag=host"
	-fsdev "local,id=job,path=$job,security_model=none"
	-device "virtio-9p-pci,fsdev=job,mount_tag=job"
	-device virtio-rng-pci "$@"
)
status=0
timeout --kill-after=10 "$limit" "${qemu[@]}" </dev/null 2>&1 | sed -u 's|\r$||' | tee "$job/console.log" || status=${PIPESTATUS[0]}

if [[ $status -eq 124 || $status -eq 137 ]]; then
	printf 'boot: the guest was not done after %s s\n' "$limit" >&2
	exit 124
fi
if [[ $status -ne 0 || ! -s $job/status ]]; then
	printf 'boot: the guest died before its job ended (QEMU status %s)\n' "$status" >&2
	exit 125
fi
exit "$(<"$job/status")"
