#!/usr/bin/env bash
# Fetches what the tests need and most machines lack: a glslc that supports cooperative
# matrices, Vulkan headers that declare them, and Vulkan drivers that run without a GPU. On
# request it also fetches nvcc, which only changes of the CUDA kernels need, libEGL, which
# gpu-bundle.sh copies to machines whose NVIDIA driver lacks it, a headless browser, which
# takes the screenshots of "make report-check", and for "make test-platforms" compilers of C for
# Windows and for arm64, QEMU, which runs tests for arm64, and what stands in for a GPU of Intel.
#
#   deps.sh glslc|headers|lavapipe|lavapipe-old|swiftshader|drm-shim
#                                                     fetch one component
#   deps.sh nvcc                                      fetch the CUDA compiler (1 GB; non-free)
#   deps.sh egl                                       fetch libEGL and libGLdispatch
#   deps.sh chromium                                  fetch headless Chromium (100 MB)
#   deps.sh qemu                                      fetch QEMU for programs of arm64
#   deps.sh mingw|gcc-arm64                           fetch gcc for windows/amd64, for linux/arm64
#   deps.sh intel-shim                                build it from Mesa's source, see lib/intel_shim.sh (500 MB meanwhile)
#   deps.sh cc windows/amd64|linux/arm64              fetch it and print its path
#   deps.sh all                                       fetch every component except the seven before
#   deps.sh versions                                  one line per component
#   deps.sh path <component>                          its root, or "system"
#   deps.sh bin                                       the folder of the wrappers
#   deps.sh env <runner>                              shell code: what run-with sets
#   deps.sh runners                                   the runners of make test, one per line
#   deps.sh nulls                                     the null devices, one per line
#
# Everything is stored in the folder deps/ of the user's cache ($VKATTN_CACHE, else
# $XDG_CACHE_HOME/vkattn, else ~/.cache/vkattn):
#
#   bin/      wrappers: glslc, spirv-val, spirv-dis, spirv-opt, nvcc, chromium, qemu-aarch64,
#             x86_64-w64-mingw32-gcc, aarch64-linux-gnu-gcc
#   roots/    one unpacked tree per component, with the file .versions
#   icd/      generated Vulkan driver manifests
#
# It changes nothing in the system and does not need root. The packages are newer than the
# machine's own, so each tree has all dependencies, with the C library, and programs are
# started by the dynamic loader of the tree (see run-with).
#
# lib/archive.sh fetches and unpacks, lib/intel_shim.sh builds, lib/runner.sh sets up a program.
#
# Exit codes: 0 done, 1 a fetch failed, 2 wrong usage, 3 not available on this
# distribution (the message names the packages to install).
set -euo pipefail

components=(glslc headers lavapipe lavapipe-old swiftshader drm-shim)
others=(nvcc egl chromium qemu mingw gcc-arm64 intel-shim)
# The runners of make test, and the null devices, some of which are among them.
runners=(lavapipe lavapipe-old swiftshader radv-navi31 radv-strix1 radv-navi21)
gcc_libraries=(libgmp10 libisl23 libmpc3 libmpfr6 libzstd1 zlib1g)
nulls=(radv-navi31 radv-strix1 radv-navi21 radv-gfx1201 nvk-turing nvk-ampere nvk-ada turnip honeykrisp anv-bmg)

# Raised when the way a tree is unpacked changes, so that old trees are replaced.
layout=1

cache=${VKATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vkattn}
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
deps=$cache/deps
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case $(uname -m) in
x86_64) arch=amd64 triple=x86_64-linux-gnu ldso=usr/lib64/ld-linux-x86-64.so.2 ;;
aarch64) arch=arm64 triple=aarch64-linux-gnu ldso=usr/lib/ld-linux-aarch64.so.1 ;;
*) arch='' triple='' ldso='' ;;
esac

# shellcheck source=scripts/lib/archive.sh
source "$here/lib/archive.sh"
# shellcheck source=scripts/lib/intel_shim.sh
source "$here/lib/intel_shim.sh"
# shellcheck source=scripts/lib/runner.sh
source "$here/lib/runner.sh"

say() { printf 'deps: %s\n' "$*" >&2; }

# recipe <component> sets:
#   suites    alternatives in order of preference; "a+b" is a with b layered on it
#   packages  what to fetch
#   closure   yes: with all dependencies; no: these packages alone; stream: these
#             alone, unpacked as they arrive, for packages too big to keep
#   areas     of the archive
#   drop      tar patterns of what is not unpacked
#   keep      when not empty, the only paths unpacked (tar patterns)
#   probe     a file that must exist in the tree
#   shown     packages whose versions are worth a line of output
#   elsewhere packages of other distributions that would do
recipe() {
	closure=yes areas=main keep=() drop=()
	case $1 in
	glslc)
		# forky's is recent enough to know NV_cooperative_matrix2 and settles; sid moves daily.
		suites=(forky sid)
		packages=(glslc spirv-tools)
		probe=usr/bin/glslc
		shown=(glslc spirv-tools)
		elsewhere='glslc and spirv-tools (shaderc 2025.2 or newer)'
		;;
	headers)
		# vk/abi_test.go compares vk/abi*.h with them. The loader that the package
		# depends on is not needed.
		suites=(forky sid)
		packages=(libvulkan-dev)
		closure=no
		keep=('./usr/include/vulkan/*.h' './usr/include/vk_video/*.h')
		probe=usr/include/vulkan/vulkan_core.h
		shown=(libvulkan-dev)
		elsewhere='libvulkan-dev or vulkan-headers (1.4.317 or newer)'
		;;
	lavapipe)
		suites=(sid forky)
		packages=(mesa-vulkan-drivers libvulkan1 vulkan-validationlayers vulkan-tools)
		probe=usr/lib/$triple/libvulkan_lvp.so
		shown=(mesa-vulkan-drivers libvulkan1 vulkan-validationlayers)
		elsewhere='libvulkan1, mesa-vulkan-drivers and vulkan-validationlayers (Mesa 26 or newer for cooperative matrices)'
		;;
	lavapipe-old)
		# A lavapipe without cooperative matrices.
		suites=(bookworm+bookworm-backports bookworm)
		packages=(mesa-vulkan-drivers libvulkan1)
		probe=usr/lib/$triple/libvulkan_lvp.so
		shown=(mesa-vulkan-drivers)
		elsewhere='mesa-vulkan-drivers (Mesa 25 or older)'
		;;
	swiftshader)
		# One library out of the browser: its closure is the browser's, which nothing here needs.
		# It runs on the C library of the lavapipe tree.
		suites=(bookworm trixie sid)
		packages=(chromium-common)
		closure=no
		keep=('*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json')
		probe=usr/lib/chromium/libvk_swiftshader.so
		shown=(chromium-common)
		elsewhere='a package holding libvk_swiftshader.so; point VKATTN_SWIFTSHADER at that file'
		;;
	drm-shim)
		# Libraries that answer for the kernel's GPU drivers: the Mesa of the lavapipe tree opens
		# devices on them that compile and execute nothing. They run on that tree's C library.
		suites=(sid forky)
		packages=(mesa-drm-shim)
		closure=no
		keep=('*_noop_drm_shim.so')
		probe=usr/lib/$triple/libamdgpu_noop_drm_shim.so
		shown=(mesa-drm-shim)
		elsewhere='mesa-drm-shim (Mesa 26 or newer) and the drivers of the same Mesa'
		;;
	nvcc)
		# nvidia-cuda-dev is 0.9 GB of libraries and the headers that nvcc cannot do without.
		# The compiler finds its parts by its profile (see write_nvcc), not by /etc.
		suites=(trixie sid)
		packages=(nvidia-cuda-toolkit libnvvm4 libcu++-dev nvidia-cuda-dev)
		closure=stream areas='main non-free'
		drop=('*.a' '*/compute-sanitizer*' './usr/lib/nvidia-cuda-toolkit/bin/g[c+][c+]' './usr/bin/nvcc' './etc')
		probe=usr/include/crt/host_runtime.h
		shown=(nvidia-cuda-toolkit)
		elsewhere='the CUDA toolkit 12.4 or newer (nvidia-cuda-toolkit), and set NVCC or CUDA_HOME'
		;;
	egl)
		# libglvnd's two libraries and none of the drivers behind them: NVIDIA brings its own.
		suites=(bookworm trixie sid)
		packages=(libegl1 libglvnd0)
		closure=no
		probe=usr/lib/$triple/libEGL.so.1
		shown=(libegl1)
		elsewhere=libegl1
		;;
	chromium)
		# The browser without a window. It runs in its tree, on the tree's C library.
		suites=(bookworm trixie sid)
		packages=(chromium-headless-shell fonts-dejavu-core)
		probe=usr/lib/chromium/chromium-headless-shell
		shown=(chromium-headless-shell)
		elsewhere='chromium or chromium-headless-shell, and set CHROMIUM'
		;;
	qemu)
		# One static program, which runs those of another architecture.
		suites=(bookworm)
		packages=(qemu-user-static)
		closure=no
		keep=('./usr/bin/qemu-aarch64-static')
		probe=usr/bin/qemu-aarch64-static
		shown=(qemu-user-static)
		elsewhere='qemu-user-static or qemu-user'
		;;
	mingw)
		# gcc finds its parts by its own path. They run on the machine's C library and on the libraries
		# of the tree (see write_gcc). The variant "win32" needs no DLL for threads.
		suites=(bookworm)
		packages=(gcc-mingw-w64-x86-64-win32 gcc-mingw-w64-x86-64-win32-runtime binutils-mingw-w64-x86-64
			mingw-w64-x86-64-dev mingw-w64-common "${gcc_libraries[@]}")
		closure=no
		drop=('*/c++*' '*/cc1plus' '*/lto1' '*/adalib*' './usr/share/ld*')
		probe=usr/bin/x86_64-w64-mingw32-gcc-win32
		shown=(gcc-mingw-w64-x86-64-win32)
		elsewhere='gcc for x86_64-w64-mingw32 (gcc-mingw-w64-x86-64)'
		;;
	gcc-arm64)
		suites=(bookworm)
		packages=(gcc-12-aarch64-linux-gnu cpp-12-aarch64-linux-gnu binutils-aarch64-linux-gnu libgcc-12-dev-arm64-cross
			libgcc-s1-arm64-cross libc6-dev-arm64-cross libc6-arm64-cross linux-libc-dev-arm64-cross "${gcc_libraries[@]}")
		closure=no
		drop=('*/lto1')
		probe=usr/bin/aarch64-linux-gnu-gcc-12
		shown=(gcc-12-aarch64-linux-gnu)
		elsewhere='gcc for aarch64-linux-gnu (gcc-aarch64-linux-gnu)'
		;;
	intel-shim)
		# What builds Mesa's library, which no package has.
		suites=(trixie)
		packages=(meson ninja-build gcc g++ python3-mako python3-yaml python3-packaging bison flex pkg-config libdrm-dev
			libexpat1-dev zlib1g-dev dash coreutils sed grep)
		probe=usr/bin/meson
		shown=(meson gcc)
		elsewhere='Mesa, built with -Dtools=drm-shim,intel'
		;;
	*)
		say "unknown component: $1 (known: ${components[*]} ${others[*]})"
		exit 2
		;;
	esac
}

# The recipe as text: a tree made by another recipe is fetched anew.
recipe_id() { local s="${suites[*]} : ${packages[*]} ${keep[*]-}${drop[*]+ -${drop[*]}}"; printf 'recipe %s %s %s\n' "$layout" "$arch" "${s% }"; }

fetched() { # <component>; its recipe must be set
	local stamp=$deps/roots/$1/.versions line
	[[ -r $stamp ]] || return 1
	read -r line <"$stamp"
	[[ $line == "$(recipe_id)" ]]
}

# Wrappers, so that a Makefile or an editor can call the tools by one path.
write_wrappers() {
	local root=$deps/roots/glslc tool tmp
	mkdir -p "$deps/bin"
	for tool in glslc spirv-val spirv-dis spirv-opt spirv-as; do
		tmp=$(mktemp "$deps/bin/.$tool.XXXXXX")
		if [[ -e $root/usr/bin/$tool ]]; then
			cat >"$tmp" <<-WRAPPER
				#!/bin/sh
				exec '$root/$ldso' --library-path '$root/usr/lib/$triple' '$root/usr/bin/$tool' "\$@"
			WRAPPER
		elif command -v "$tool" >/dev/null; then
			printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "$tool")" >"$tmp"
		else
			rm -f "$tmp"
			continue
		fi
		chmod 755 "$tmp"
		mv -f "$tmp" "$deps/bin/$tool"
	done
}

# nvcc finds everything else by the profile in its folder.
write_nvcc() {
	local root=$deps/roots/nvcc bin tmp
	bin=$root/usr/lib/nvidia-cuda-toolkit/bin
	cat >"$bin/nvcc.profile" <<-PROFILE
		TOP = \$(_HERE_)/../../..
		CICC_PATH = \$(_HERE_)
		NVVMIR_LIBRARY_DIR = \$(_HERE_)/../libdevice
		LD_LIBRARY_PATH += \$(TOP)/lib/$triple:
		PATH += \$(TOP)/bin:\$(_HERE_):
		INCLUDES += "-I\$(TOP)/include" \$(_SPACE_)
		LIBRARIES =+ \$(_SPACE_)
		CUDAFE_FLAGS +=
		PTXAS_FLAGS +=
	PROFILE
	mkdir -p "$deps/bin"
	tmp=$(mktemp "$deps/bin/.nvcc.XXXXXX")
	printf '#!/bin/sh\nexec '\''%s'\'' "$@"\n' "$bin/nvcc" >"$tmp"
	chmod 755 "$tmp"
	mv -f "$tmp" "$deps/bin/nvcc"
}

# The browser looks for its data in the folder of its executable, which is the dynamic
# loader: a copy of that lies there. Its processes are started by the wrapper too. The fonts
# and the configuration that finds them are in the tree.
write_chromium() {
	local root=$deps/roots/chromium tmp
	local lib=$root/usr/lib
	mkdir -p "$deps/bin"
	cp -L "$root/$ldso" "$lib/chromium/loader"
	cat >"$root/fonts.conf" <<-CONF
		<?xml version="1.0"?>
		<fontconfig><dir>$root/usr/share/fonts</dir><cachedir>$root/fonts-cache</cachedir></fontconfig>
	CONF
	tmp=$(mktemp "$deps/bin/.chromium.XXXXXX")
	cat >"$tmp" <<-WRAPPER
		#!/bin/sh
		export FONTCONFIG_FILE='$root/fonts.conf'
		exec '$lib/chromium/loader' --library-path '$lib/$triple:$lib/$triple/pulseaudio' '$lib/chromium/chromium-headless-shell' \
			--no-zygote --browser-subprocess-path='$deps/bin/chromium' "\$@"
	WRAPPER
	chmod 755 "$tmp"
	mv -f "$tmp" "$deps/bin/chromium"
}

write_qemu() {
	local tmp
	mkdir -p "$deps/bin"
	tmp=$(mktemp "$deps/bin/.qemu.XXXXXX")
	printf '#!/bin/sh\nexec '\''%s'\'' "$@"\n' "$deps/roots/qemu/usr/bin/qemu-aarch64-static" >"$tmp"
	chmod 755 "$tmp"
	mv -f "$tmp" "$deps/bin/qemu-aarch64"
}

# A compiler of C for another platform.
write_gcc() { # <component> <name> <program>
	local root=$deps/roots/$1 tmp
	mkdir -p "$deps/bin"
	tmp=$(mktemp "$deps/bin/.$2.XXXXXX")
	printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s"\nexec '\''%s'\'' "$@"\n' "$root/usr/lib/$triple" "$root/usr/bin/$3" >"$tmp"
	chmod 755 "$tmp"
	mv -f "$tmp" "$deps/bin/$2"
}

# Drivers of the system's own packages, for distributions that nothing is fetched on.
system_manifest() { # <lvp|radeon>
	local f
	for f in /usr/share/vulkan/icd.d/"$1"_icd*.json /etc/vulkan/icd.d/"$1"_icd*.json; do
		if [[ -r $f ]]; then
			printf '%s\n' "$f"
			return
		fi
	done
	return 1
}

on_system() { # <component>: does the system itself provide it?
	case $1 in
	glslc) command -v glslc >/dev/null && command -v spirv-val >/dev/null ;;
	headers) [[ -r /usr/include/vulkan/vulkan_core.h ]] ;;
	lavapipe) system_manifest lvp >/dev/null ;;
	# A system has one version of a driver. To use it under both names would report
	# tests that were not run.
	lavapipe-old) system_manifest radeon >/dev/null ;;
	swiftshader) [[ -n ${VKATTN_SWIFTSHADER-} && -r ${VKATTN_SWIFTSHADER-} ]] ;;
	egl) ldconfig -p 2>/dev/null | grep -q 'libEGL\.so\.1' ;;
	nvcc) command -v nvcc >/dev/null || [[ -x ${CUDA_HOME-}/bin/nvcc ]] ;;
	chromium) command -v chromium >/dev/null || command -v chromium-headless-shell >/dev/null ;;
	qemu) command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null ;;
	mingw) command -v x86_64-w64-mingw32-gcc >/dev/null ;;
	gcc-arm64) command -v aarch64-linux-gnu-gcc >/dev/null ;;
	esac
}

why() { # <component> <reason...>: stored for the report of test.sh
	local component=$1
	shift
	mkdir -p "$deps/why"
	printf '%s\n' "$*" >"$deps/why/$component"
	say "$component: $*"
}

fetch() { # <component>
	local component=$1 mirror set dir log suites packages closure areas keep drop probe shown elsewhere
	recipe "$component"
	if fetched "$component"; then
		return 0
	fi
	if ! is_debian || [[ -z $arch || ! -r $keyring ]] ||
		! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		if on_system "$component"; then
			[[ $component == glslc ]] && write_wrappers
			rm -f "$deps/why/$component"
			say "$component: using the system's own"
			return 0
		fi
		why "$component" "not fetched here (needs Debian's apt, its archive keyring, and amd64 or arm64); install $elsewhere"
		return 3
	fi

	mkdir -p "$deps/roots" "$deps/lock" "$deps/log"
	# Held until this function's subshell ends; a second run waits and finds the tree there.
	exec 8>"$deps/lock/$component"
	flock 8
	if fetched "$component"; then
		return 0
	fi
	# What an interrupted run left behind; nobody else is in here.
	rm -rf "$deps/roots/.$component."*

	log=$deps/log/$component.log
	: >"$log"
	local found=() start=$SECONDS
	mapfile -t found < <(mirrors)
	if ! ((${#found[@]})); then
		why "$component" "apt's configuration names no Debian archive"
		return 1
	fi
	for set in "${suites[@]}"; do
		for mirror in "${found[@]}"; do
			say "$component: fetching from $set ..."
			# Components that share suites share apt's indices, so one at a time.
			mkdir -p "$deps/lock"
			exec 9>"$deps/lock/apt-$set"
			flock 9
			if dir=$(download "$component" "$mirror" "$set" "$log") &&
				unpack "$component" "$dir/cache/archives" "$set"; then
				rm -f "$dir"/cache/archives/*.deb
				exec 9>&-
				[[ $component == glslc ]] && write_wrappers
				[[ $component == nvcc ]] && write_nvcc
				[[ $component == chromium ]] && write_chromium
				[[ $component == qemu ]] && write_qemu
				[[ $component == mingw ]] && write_gcc mingw x86_64-w64-mingw32-gcc x86_64-w64-mingw32-gcc-win32
				# The linker's script names the libraries by paths of the system: their names alone are found in the tree.
				[[ $component == gcc-arm64 ]] && sed -i 's|/usr/aarch64-linux-gnu/lib/||g' \
					"$deps/roots/gcc-arm64/usr/aarch64-linux-gnu/lib/libc.so"
				[[ $component == gcc-arm64 ]] && write_gcc gcc-arm64 aarch64-linux-gnu-gcc aarch64-linux-gnu-gcc-12
				if [[ $component == intel-shim ]] && ! build_intel_shim "$mirror" >>"$log" 2>&1; then
					rm -rf "$deps/roots/intel-shim"
					why "$component" "could not be built; the output is in $log"
					return 1
				fi
				rm -f "$deps/why/$component"
				say "$(describe "$component") [$((SECONDS - start)) s]"
				return 0
			fi
			exec 9>&-
		done
	done
	why "$component" "could not be fetched ($(grep -m 1 '^E: ' "$log" || true))"
	say "$component: apt's output is in $log"
	return 1
}

describe() { # <component>: one line with what is there
	local component=$1 stamp suite out='' p v suites packages closure areas keep drop probe shown elsewhere
	recipe "$component"
	stamp=$deps/roots/$component/.versions
	if [[ -r $stamp ]]; then
		suite=$(awk '$1 == "suite" { print $2 }' "$stamp")
		for p in "${shown[@]}"; do
			v=$(awk -v p="$p" '$1 == p { print $2; exit }' "$stamp")
			out+=" $p $v,"
		done
		printf '%s:%s from %s\n' "$component" "${out%,}" "$suite"
	elif on_system "$component"; then
		printf '%s: the system'\''s own\n' "$component"
	else
		printf '%s: absent\n' "$component"
	fi
}

main() {
	local command=${1-} rc=0 r c pids=()
	case $command in
	all)
		# At once: the locks of fetch keep those that share a suite in turn.
		for c in "${components[@]}"; do
			(fetch "$c") &
			pids+=($!)
		done
		for c in "${pids[@]}"; do
			r=0
			wait "$c" || r=$?
			# A failed fetch says more than an unsuitable distribution.
			if ((r == 1 || (r && !rc))); then rc=$r; fi
		done
		return "$rc"
		;;
	versions) for c in "${components[@]}"; do describe "$c"; done ;;
	runners) printf '%s\n' "${runners[@]}" ;;
	nulls) printf '%s\n' "${nulls[@]}" ;;
	bin) printf '%s\n' "$deps/bin" ;;
	path)
		recipe "${2-}"
		if [[ -r $deps/roots/$2/.versions ]]; then
			printf '%s\n' "$deps/roots/$2"
		elif on_system "$2"; then
			echo system
		else
			say "$2 is absent; run $0 $2"
			return 3
		fi
		;;
	cc)
		case ${2-} in
		windows/amd64) c=mingw r=x86_64-w64-mingw32-gcc ;;
		linux/arm64) c=gcc-arm64 r=aarch64-linux-gnu-gcc ;;
		*)
			say "no compiler of C for ${2-}"
			return 2
			;;
		esac
		(fetch "$c") || return
		[[ -x $deps/bin/$r ]] && printf '%s\n' "$deps/bin/$r" || command -v "$r"
		;;
	env) runner_env "${2-}" ;;
	*)
		if [[ $command && " ${components[*]} ${others[*]} " == *" $command "* ]]; then
			(fetch "$command")
			return
		fi
		sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		return 2
		;;
	esac
}

main "$@"
