# shellcheck shell=bash
# shellcheck disable=SC2154 # deps.sh assigns what is read here
# Part of deps.sh: the library that answers for the kernel's drivers of Intel's GPUs. No package has it, so that Mesa's
# source builds it, with the tools of the tree intel-shim: 54 s on two cores. The driver of the lavapipe tree, which is
# newer, opens devices on it. Reads $deps and $triple.

# The version of trixie; the archive keeps it as long as that suite.
mesa_source=pool/main/m/mesa/mesa_25.0.7.orig.tar.xz
mesa_sha256=592272df3cf01e85e7db300c449df5061092574d099da275d19e97ef0510f8a6

# build_intel_shim <mirror> leaves the library alone in the tree.
build_intel_shim() {
	local root=$deps/roots/intel-shim library=usr/lib/$triple/libintel_noop_drm_shim.so
	stream "$1/$mesa_source" >"$root/mesa.tar.xz" || return
	sha256sum --check <<<"$mesa_sha256  $root/mesa.tar.xz" || return
	mkdir -p "$root/mesa" "$root/dev" "$root/tmp" "$root/proc"
	tar -xf "$root/mesa.tar.xz" -C "$root/mesa" --strip-components=1 --no-same-owner || return
	# In the tree as its root folder: the tools find each other by absolute paths.
	unshare --user --map-root-user --mount sh -c 'mount --rbind /dev "$1/dev" && exec chroot "$1" /usr/bin/dash -ec "$2"' sh "$root" '
		export PATH=/usr/bin CC=gcc CXX=g++ HOME=/tmp LC_ALL=C.UTF-8
		cd /mesa
		meson setup build -Dbuildtype=release -Dtools=drm-shim,intel -Dvulkan-drivers= -Dgallium-drivers= -Dplatforms= \
			-Dglx=disabled -Degl=disabled -Dopengl=false -Dgles1=disabled -Dgles2=disabled -Dgbm=disabled \
			-Dllvm=disabled -Dzstd=disabled -Dvalgrind=disabled -Dlibunwind=disabled -Dxmlconfig=disabled
		ninja -C build src/intel/tools/libintel_noop_drm_shim.so' || return
	mv "$root/mesa/build/src/intel/tools/${library##*/}" "$deps/roots/.intel-shim.so" || return
	find "$root" -mindepth 1 -maxdepth 1 ! -name .versions -exec rm -rf --one-file-system {} +
	mkdir -p "$root/${library%/*}"
	mv "$deps/roots/.intel-shim.so" "$root/$library"
}
