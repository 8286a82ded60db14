#!/usr/bin/env bash
# Builds the guest image (Debian's kernel, its RDMA modules and an initramfs) and prints the directory that holds it.
#
#	usage: image.sh
#
# The image is kept in ${ARGONAUT_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/argonaut-vm}, one directory for each
# kernel version and recipe; nothing is written into the repository. Needs root and apt (Debian 12, amd64).
# Debian builds rdma_rxe as a module, but not siw: that one is compiled here from Debian's kernel source package.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${ARGONAUT_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/argonaut-vm}

# What the host needs: the first line to build and boot, the second to compile the provider and its tests, the third
# for the programs that the guest runs (it sees the host's root file system).
packages=(
	qemu-system-x86 busybox-static cpio kmod make gcc xz-utils util-linux
	libc6-dev libibverbs-dev librdmacm-dev
	rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest iproute2
)

# Modules in the order they are loaded. The crc32 modules come first because rxe and siw look for the algorithms when
# they start. ib_uverbs comes before rdma_cm: the other way round the removal of a device is never announced.
modules=(
	crc32c_generic crc32c-intel libcrc32c crc32_generic crc32-pclmul
	virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_net
	9pnet 9pnet_virtio netfs fscache 9p
	configfs ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm
	udp_tunnel ip6_udp_tunnel veth sch_netem rdma_rxe siw
)

log() { printf 'image: %s\n' "$*" >&2; }
die() { log "$*"; exit 1; }

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root "$@" >&2; }

missing() {
	local p
	for p in "$@"; do
		[[ $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || printf '%s\n' "$p"
	done
}

# kernel_release prints the release of Debian's current kernel, such as 6.1.0-57-amd64.
kernel_release() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: linux-image-//p' | head -n 1; }

kernel_version() { apt-cache policy "linux-image-$1" | sed -n 's/^ *Candidate: //p'; }

image_dir() {
	local recipe
	recipe=$(cat "$here/image.sh" "$here/init" | sha256sum | cut -c 1-12)
	printf '%s/%s_%s_%s\n' "$cache" "$1" "$2" "$recipe"
}

# build_siw DIR RELEASE VERSION compiles siw in DIR.
build_siw() {
	local dir=$1 release=$2 version=$3 series source
	series=${version%.*} # 6.1.192-3 is of the series 6.1
	source=linux-source-$series
	log "compiling siw from $source $version"
	(cd "$dir" && apt download "$source=$version")
	dpkg-deb --fsys-tarfile "$dir/${source}_${version}_all.deb" |
		tar -xO "./usr/src/$source.tar.xz" |
		xz -dc -T0 |
		tar -x -C "$dir" --strip-components=1 "$source/drivers/infiniband/sw/siw"
	make -s -C "/usr/src/linux-headers-$release" M="$dir/drivers/infiniband/sw/siw" CONFIG_RDMA_SIW=m modules >&2
}

# build DIR RELEASE VERSION puts vmlinuz and initrd.gz into DIR.
build() {
	local dir=$1 release=$2 version=$3 work=$1/work root=$1/root tree module path
	tree=$work/kernel
	mkdir -p "$work" "$tree" "$root"/{bin,proc,sys,dev,newroot,modules}

	log "fetching linux-image-$release $version"
	(cd "$work" && apt download "linux-image-$release=$version")
	dpkg-deb -x "$work"/linux-image-*.deb "$tree"
	build_siw "$work" "$release" "$version"
	install -D -m 644 "$work/drivers/infiniband/sw/siw/siw.ko" "$tree/lib/modules/$release/updates/siw.ko"
	depmod -b "$tree" "$release"

	for module in "${modules[@]}"; do
		modprobe -d "$tree" -S "$release" --show-depends --ignore-install "$module" ||
			die "no module $module in linux-image-$release"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
	while read -r path; do
		cp "$path" "$root/modules/"
		basename "$path"
	done <"$work/order" >"$root/modules/order"

	cp /bin/busybox "$root/bin/busybox"
	install -m 755 "$here/init" "$root/init"
	(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$dir/initrd.gz"
	cp "$tree/boot/vmlinuz-$release" "$dir/vmlinuz"
	rm -rf "$work" "$root"
}

main() {
	local release version dir lacking
	[[ $(dpkg --print-architecture 2>/dev/null) == amd64 ]] || die "needs Debian on amd64"

	lacking=$(missing "${packages[@]}")
	release=$(kernel_release)
	if [[ -n $lacking || -z $release ]]; then
		[[ $EUID -eq 0 ]] || die "must be root to install: ${lacking//$'\n'/ }"
		apt update
		# shellcheck disable=SC2086 # one word for each package is meant
		[[ -z $lacking ]] || { log "installing" $lacking; apt install --no-install-recommends -y $lacking; }
		release=$(kernel_release)
	fi
	[[ -n $release ]] || die "apt knows no linux-image-amd64"
	version=$(kernel_version "$release")

	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9 # two builds at once would install packages against each other
	dir=$(image_dir "$release" "$version")
	if [[ ! -e $dir/initrd.gz ]]; then
		[[ $EUID -eq 0 ]] || die "must be root to build the image"
		apt update # the lists may be old, and an old version is no longer there to be fetched
		release=$(kernel_release)
		version=$(kernel_version "$release")
		dir=$(image_dir "$release" "$version")
		lacking=$(missing "linux-headers-$release")
		# shellcheck disable=SC2086
		[[ -z $lacking ]] || apt install --no-install-recommends -y $lacking
		tmp=$(mktemp -d "$cache/build.XXXXXX")
		trap 'rm -rf "$tmp"' EXIT # tmp is no local: the trap runs after main
		build "$tmp" "$release" "$version"
		rm -rf "$dir"
		mv "$tmp" "$dir"
		log "built $dir"
	fi
	printf '%s\n' "$dir"
}

main "$@"
