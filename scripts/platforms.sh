#!/usr/bin/env bash
# platforms.sh build|test|compilers [runner...]
#
#   build      builds the library and the command without cgo for every target
#   test       builds the release twice and compares the bytes, builds and vets the targets, then runs what can run here:
#              the tests without cgo on this machine, the tests of tier cpu and what it is made of for linux/arm64 under
#              QEMU, which deps.sh fetches, the command of the release's archives on the CPU, and compilers
#   compilers  compiles every pipeline of the tables on each null device (see run-with), and compares the
#              spills and waves of the tiles that the heuristics choose with attention/testdata/statistics
#
# The first run on a machine compiles the standard library for each target, which takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=(linux/amd64 linux/arm64 windows/amd64 windows/arm64 darwin/amd64 darwin/arm64)
export CGO_ENABLED=0

on() { GOOS=${1%/*} GOARCH=${1#*/} "${@:2}"; }
step() { printf '== %s [%d s]\n' "$*" "$SECONDS"; }

build() {
	for target in "${targets[@]}"; do
		step "go build, $target"
		on "$target" go build ./...
	done
}

# The packages whose tests need no more than a CPU.
cpu=(./internal/arith ./internal/dropout ./internal/gokernels ./internal/grid ./internal/half ./internal/quant
	./attention/score ./internal/simd ./internal/oracle ./internal/tensors ./attention/kvcache ./attention/merge)

test_all() {
	step 'the release, twice' # first, because it refuses a tree with changes
	scripts/release.sh test
	build
	for target in "${targets[@]}"; do
		step "go vet, $target"
		on "$target" go vet ./...
	done
	step "tests without cgo, $(go env GOOS)/$(go env GOARCH)"
	go test "${cpu[@]}" ./vk ./internal/... ./attention ./cmd/vkattn/...
	scripts/deps.sh qemu
	local qemu
	qemu=$(scripts/deps.sh bin)/qemu-aarch64
	[[ -x $qemu ]] || qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
	step "tests of tier cpu, linux/arm64 under QEMU"
	on linux/arm64 go test -timeout 30m -exec "$qemu" "${cpu[@]}"
	on linux/arm64 go test -timeout 30m -exec "$qemu" -run 'TestCPU|TestOneKey|Expf|Tanhf' ./attention
	step "the command of the archives, on the CPU"
	local out archive emulator
	out=$(mktemp -d)
	for archive in amd64-gpu amd64-cpu arm64-cpu; do
		tar -xzf build/release/vkattn-*-linux-$archive.tar.gz -C "$out"
		[[ $archive == amd64-* ]] && emulator=() || emulator=("$qemu")
		"${emulator[@]}" "$out"/vkattn-*-$archive/vkattn bench --device cpu --seqlen 128 --headdim 64 --nheads 2 --batch-size 1
	done
	rm -r "$out"
	compilers
	step done
}

compilers() { # [runner...]
	local runner
	# shellcheck disable=SC2046 # one word each
	(($#)) || set -- $(scripts/deps.sh nulls)
	scripts/deps.sh lavapipe
	scripts/deps.sh drm-shim
	for runner; do
		step "pipelines on $runner"
		CGO_ENABLED=1 go test -count=1 -timeout 2h -exec "$PWD/scripts/run-with $runner" \
			-run 'Compile|TiersOfTheDriver|TileStatistics|ProbedFeatures|TestStatistics$' ./vk ./attention ./tests
	done
}

case ${1-} in
build) build ;;
test) test_all ;;
compilers) compilers "${@:2}" ;;
*)
	sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
