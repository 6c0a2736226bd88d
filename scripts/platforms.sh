#!/usr/bin/env bash
# platforms.sh part...
#
#   release    builds the release twice and compares the bytes; it refuses a tree with changes
#   build      builds the library and the command without cgo for every target, and with cgo for windows/amd64 and
#              linux/arm64, by compilers that deps.sh fetches
#   vet        go vet for the same
#   native     the tests without cgo on this machine: what needs no device, and packages vk and attention on lavapipe
#   arm64      the tests of tier cpu and of what it is made of for linux/arm64 under QEMU, which deps.sh fetches
#   archives   the command of the release's archives for Linux, on the CPU
#   windows    tests of packages without a device, those of package vk, and the command on Vulkan and on the CPU,
#              under Wine; it names what is missing if the machine has no Wine (Debian: wine64) or no Xvfb (xvfb)
#   compilers  compiles every pipeline of the tables on each null device (see run-with), and compares the
#              spills and waves of the tiles that the heuristics choose with attention/testdata/statistics;
#              NULLS names other devices than all
#
# make test-platforms runs all of them. The first run on a machine compiles the standard library for each target, which
# takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=(linux/amd64 linux/arm64 windows/amd64 windows/arm64 darwin/amd64 darwin/arm64)
cgo_targets=(windows/amd64 linux/arm64)
export CGO_ENABLED=0

# shellcheck source=scripts/lib/wine.sh
source scripts/lib/wine.sh

with_c() { CGO_ENABLED=1 CC=$(scripts/deps.sh cc "$1") GOOS=${1%/*} GOARCH=${1#*/} "${@:2}"; }
on() { GOOS=${1%/*} GOARCH=${1#*/} "${@:2}"; }
step() { printf '== %s [%d s]\n' "$*" "$SECONDS"; }

build() {
	for target in "${targets[@]}"; do
		step "go build, $target"
		on "$target" go build ./...
	done
	for target in "${cgo_targets[@]}"; do
		step "go build, $target with cgo"
		with_c "$target" go build ./...
	done
}

# The packages whose tests need no more than a CPU.
cpu=(./internal/arith ./internal/ccall ./internal/dropout ./internal/gokernels ./internal/grid ./internal/half ./internal/quant
	./attention/score ./internal/simd ./internal/oracle ./internal/tensors ./attention/kvcache ./attention/merge)

release() { scripts/release.sh test; }

vet() {
	for target in "${targets[@]}"; do
		step "go vet, $target"
		on "$target" go vet ./...
	done
	for target in "${cgo_targets[@]}"; do
		step "go vet, $target with cgo"
		with_c "$target" go vet ./...
	done
}

native() {
	step "tests without cgo, $(go env GOOS)/$(go env GOARCH)"
	go test -timeout 30m "${cpu[@]}" ./internal/... ./cmd/vkattn/...
	scripts/deps.sh lavapipe
	VKATTN_DRIVER=lavapipe VKATTN_TEST_LEVEL=brief go test -timeout 1h -exec "$PWD/scripts/run-with lavapipe" ./vk ./attention
}

libc=/usr/aarch64-linux-gnu
# Sets qemu, and libc to what it runs with.
emulator() {
	scripts/deps.sh qemu
	qemu=$(scripts/deps.sh bin)/qemu-aarch64
	[[ -x $qemu ]] || qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
	[[ -e $libc/lib/libc.so.6 ]] || libc=$(scripts/deps.sh path gcc-arm64)$libc
}

arm64() {
	emulator
	step "tests of tier cpu, linux/arm64 under QEMU"
	cpu_tests on linux/arm64 -exec "$qemu -L $libc"
	step "the same with cgo"
	cpu_tests with_c linux/arm64 -exec "$qemu -L $libc"
}

archives() {
	emulator
	step "the command of the archives, on the CPU"
	local out archive run
	out=$(mktemp -d)
	for archive in amd64 arm64; do
		tar -xzf build/release/vkattn-*-linux-$archive.tar.gz -C "$out"
		[[ $archive == amd64 ]] && run=() || run=("$qemu" -L "$libc")
		"${run[@]}" "$out"/vkattn-*-$archive/vkattn bench --device cpu --seqlen 128 --headdim 64 --nheads 2 --batch-size 1
	done
	rm -r "$out"
}

cpu_tests() { # <on|with_c> <target> <flags of go test...>
	"$1" "$2" go test -timeout 30m "${@:3}" "${cpu[@]}"
	"$1" "$2" go test -timeout 30m "${@:3}" -run 'TestCPU|TestOneKey|Expf|Tanhf' ./attention
}

windows() {
	local dir device how
	scripts/deps.sh lavapipe-old
	dir=$(mktemp -d)
	if ! wine_setup "$dir"; then
		echo 'platforms: nothing runs for windows: Wine or Xvfb is missing (Debian: wine64, xvfb)' >&2
		return
	fi
	# shellcheck disable=SC2064 # the folder of now
	trap "'$dir/wine' wineboot -k || :; kill $wine_display; sleep 1; rm -rf '$dir' || :" EXIT
	step 'tests of tier cpu, windows/amd64 under Wine'
	VKATTN_DRIVER=none VKATTN_LIBVULKAN=none.dll cpu_tests with_c windows/amd64 -overlay "$dir/overlay.json" -exec "$dir/wine"
	for how in on with_c; do
		step "calls of C and package vk on lavapipe-old behind Wine, $how"
		VKATTN_DRIVER=lavapipe-old VKATTN_TEST_LEVEL=brief \
			$how windows/amd64 go test -overlay "$dir/overlay.json" -exec "$dir/wine" ./internal/ccall ./vk
		step "the command under Wine, $how"
		$how windows/amd64 go build -o "$dir/vkattn.exe" ./cmd/vkattn
		"$dir/wine" "$dir/vkattn.exe" info
		for device in cpu 0; do
			"$dir/wine" "$dir/vkattn.exe" bench --device $device --seqlen 128 --headdim 64 --nheads 2 --batch-size 1
			"$dir/wine" "$dir/vkattn.exe" verify --device $device --seqlen 128 --headdim 64 --nheads 2 --batch-size 1
		done
	done
}

compilers() {
	local runner runners=${NULLS:-$(scripts/deps.sh nulls)}
	scripts/deps.sh lavapipe
	scripts/deps.sh drm-shim
	[[ $runners != *anv-* ]] || scripts/deps.sh intel-shim
	for runner in $runners; do
		step "pipelines on $runner"
		CGO_ENABLED=1 go test -count=1 -timeout 2h -exec "$PWD/scripts/run-with $runner" \
			-run 'Compile|TiersOfTheDriver|TileStatistics|ProbedFeatures|TestStatistics$' ./vk ./attention ./tests
	done
}

for part in "${@:-usage}"; do
	case $part in
	release | build | vet | native | arm64 | archives | windows | compilers)
		step "$part"
		$part
		;;
	*)
		sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
done
step done
