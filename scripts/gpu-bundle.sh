#!/usr/bin/env bash
# gpu-bundle.sh [--tests <packages>] [--pack] <folder> makes a folder for a machine that has
# a GPU and its driver but neither Go, glslc nor the Vulkan SDK:
#
#   vkattn      the command
#   man/        its manual pages; completion/: its completion scripts
#   examples/   the programs of attention/examples
#   gpu-run.sh  runs everything below
#   tests/      one test binary per package; its name is the package's folder with
#               dots for slashes
#   src/        the working tree's files, since tests read theirs from the
#               package's folder
#   lib/        a Vulkan loader, used if the machine has none
#   lib/egl/    libEGL and its dependencies, used if the machine has none: NVIDIA's driver
#               needs it
#
# --tests names the packages whose tests are included, as words: "./tests ./attention", or
# none. The default is all of them, 1.3 GB.
# --pack also writes <folder>.tar.xz, with one copy of what the binaries share.
set -euo pipefail

usage() {
	echo 'usage: gpu-bundle.sh [--tests <packages>] [--pack] <folder>' >&2
	exit 2
}
tests=./... pack=
while (($#)); do
	case $1 in
	--tests)
		(($# > 1)) || usage
		tests=$2
		shift
		;;
	--pack) pack=1 ;;
	-*) usage ;;
	*) break ;;
	esac
	shift
done
(($# == 1)) && [[ $1 ]] || usage
out=$1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Only what this script makes, so that a mistaken argument costs nothing.
rm -rf "${out:?}/tests" "${out:?}/examples" "${out:?}/src" "${out:?}/lib" "${out:?}/man" "${out:?}/completion" \
	"$out/vkattn" "$out/gpu-run.sh"
mkdir -p "$out/tests" "$out/examples" "$out/src" "$out/lib"

# Stripped: the symbol tables are a third of the size, and Go's traces do not need them.
build=(-trimpath -ldflags '-s -w')
# Results name the commit of the command, whatever GOFLAGS says.
! git rev-parse HEAD >/dev/null 2>&1 || build+=(-buildvcs=true)
go build "${build[@]}" -o "$out/vkattn" ./cmd/vkattn
make -s -o "$out/vkattn" BUILD="$out" man
go build "${build[@]}" -o "$out/examples/" ./attention/examples/...
root=$PWD packages=()
if [[ $tests != none ]]; then
	# shellcheck disable=SC2086 # the packages are words
	mapfile -t packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' $tests | grep .)
	((${#packages[@]})) || usage
fi
for dir in "${packages[@]}"; do
	rel=${dir#"$root"/}
	go test -c -vet=off -ldflags '-s -w' -o "$out/tests/${rel//\//.}.test" "./$rel"
	echo "gpu-bundle: tests of $rel"
done

# What git would take, committed or not, so that a change can be tried first. A
# file that was deleted and not yet committed is listed too: leave it out.
git ls-files -co --exclude-standard -z |
	while IFS= read -r -d '' file; do [[ -f $file ]] && printf '%s\0' "$file"; done |
	tar -c --null -T - | tar -x -C "$out/src" --no-same-owner
cp scripts/gpu-run.sh "$out/gpu-run.sh"

# The oldest loader at hand: it asks for the least of the other machine's C library.
if tree=$(scripts/deps.sh path lavapipe-old 2>/dev/null) && [[ $tree != system ]]; then
	find "$tree/usr/lib" -name libvulkan.so.1 -exec cp -L {} "$out/lib/" \;
else
	echo 'gpu-bundle: no loader included; run scripts/deps.sh lavapipe-old first if the machine has none' >&2
fi

# In a folder of their own, so that a search path with them shadows nothing else.
if tree=$(scripts/deps.sh path egl 2>/dev/null) && [[ $tree != system ]]; then
	mkdir "$out/lib/egl"
	find "$tree/usr/lib" \( -name libEGL.so.1 -o -name libGLdispatch.so.0 \) -exec cp -L {} "$out/lib/egl/" \;
else
	echo 'gpu-bundle: no libEGL included; run scripts/deps.sh egl first if the machine has none' >&2
fi

# A binary made here runs where the C library is at least this recent.
if command -v objdump >/dev/null; then
	printf 'gpu-bundle: needs %s or newer\n' "$(find "$out" -maxdepth 3 -type f \( -name '*.test' -o -name vkattn -o -path '*/examples/*' -o -path '*/lib/*.so.*' \) \
		-exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -n 1)"
fi
printf 'gpu-bundle: %s in %s\n' "$(du -sh "$out" | cut -f 1)" "$out"
if [[ $pack ]]; then
	# The binaries embed the same kernels: the window of the compressor must reach from one to the next.
	tar -C "$(dirname "$out")" -c "$(basename "$out")" | xz --lzma2=preset=1,dict=192MiB >"$out.tar.xz"
	printf 'gpu-bundle: %s in %s\n' "$(du -h "$out.tar.xz" | cut -f 1)" "$out.tar.xz"
fi
