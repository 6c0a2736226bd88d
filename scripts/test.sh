#!/usr/bin/env bash
# test.sh [part...] runs the tests, part by part; without arguments, all of them:
#
#   native         vet, and every test with no Vulkan driver at all (the CPU tier)
#   <runner>       the tests that use a device, on one driver (see run-with)
#   stress         the host layer's stress tests with the garbage collector at
#                  its most eager and the runtime checking pointers passed to C
#   abi            the Vulkan ABI declared in vk/abi*.h is the registry's
#   fuzz           each fuzz target for VKATTN_FUZZ_TIME (3s), on top of its seeds,
#                  which are tests of native too; inputs that fail are printed, and
#                  lie in the package's testdata/fuzz, to be committed with the fix
#   shaders-check  the committed SPIR-V is what the sources compile to
#
# A part whose driver is absent is reported as SKIP with the reason. Where
# CI=true or VKATTN_REQUIRE=1 that fails the run, so that a green run means that
# everything ran. Parts never stop one another; the summary comes last.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

deps=$PWD/scripts/deps.sh
run_with=$PWD/scripts/run-with
mapfile -t runners < <("$deps" runners)
parts=("$@")
((${#parts[@]})) || parts=(native "${runners[@]}" stress abi fuzz shaders-check)

# Long enough for the slowest package on two cores, short enough that a driver
# that hangs is a failure with a stack trace and not a job that ran out of time.
timeout=${VKATTN_TEST_TIMEOUT:-45m}

# Drivers on the CPU compile kernels on one core, so parts run in parallel. Each writes to
# its own log; the logs are printed in the order of the parts.
jobs=${VKATTN_TEST_JOBS:-$(nproc)}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

bin=$("$deps" bin)

has_go() { [[ -d $1 ]] && [[ -n $(find "$1" -name '*.go' -print -quit) ]]; }

# The packages whose tests open a device; what the others test is the same on every runner.
mapfile -t device_packages < <(grep -rlE --include='*_test.go' 'vk\.Open|VKATTN_DRIVER' vk attention tests cmd cudapath 2>/dev/null |
	xargs -r -n 1 dirname | sort -u | sed 's|^|./|')

finish() { # <part> <PASS|FAIL|SKIP> <seconds> [reason]
	printf '%-5s %-15s %5d s  %s\n' "$2" "$1" "$3" "${4-}" >>"$work/summary"
	case $2 in
	FAIL) : >"$work/failed" ;;
	SKIP)
		: >"$work/skipped"
		printf 'SKIP %s: %s\n' "$1" "${4-}"
		;;
	esac
}

# Why a component is absent: what deps.sh said when it could not fetch it.
reason() { # <component>
	local file
	file=$(dirname "$bin")/why/$1
	if [[ -r $file ]]; then
		cat "$file"
	else
		echo "not fetched; run scripts/deps.sh $1"
	fi
}

component_of() {
	case $1 in
	radv-*) echo lavapipe-old ;;
	*) echo "$1" ;;
	esac
}

version_of() { "$deps" versions | sed -n "s/^$1: //p"; }

# The device as the driver names it. Empty where vulkaninfo is missing or cannot
# say: it asks for Vulkan 1.4, which SwiftShader refuses, and for surfaces, which
# crash RADV's null device.
device_of() { # <runner>
	local root info
	root=$("$deps" path lavapipe 2>/dev/null) || return 0
	info=$root/usr/bin/vulkaninfo
	[[ $root == system ]] && info=$(command -v vulkaninfo)
	[[ -x $info ]] || return 0
	case $1 in swiftshader | radv-*) return 0 ;; esac
	"$run_with" "$1" "$info" --summary 2>/dev/null | sed -n 's/^[[:space:]]*deviceName[[:space:]]*= //p' | head -n 1
}

native() {
	printf '\n== native: %s, no Vulkan driver\n' "$(go version)"
	go vet ./... || return 1
	# A machine that has a driver must not turn this part into another one.
	VKATTN_DRIVER=none VKATTN_LIBVULKAN=/nonexistent/libvulkan.so.1 \
		go test -timeout "$timeout" ./...
}

on_runner() { # <runner>
	local validation=
	# Not on the null devices: they execute nothing that could be validated, and
	# not twice on lavapipe, whose older version is here for what it lacks.
	case $1 in lavapipe | swiftshader) validation=1 ;; esac
	# LLVM optimises for longer than these problems run.
	VKATTN_VALIDATION=${VKATTN_VALIDATION:-$validation} GALLIVM_PERF=${GALLIVM_PERF-nopt} \
		go test -count=1 -timeout "$timeout" -exec "$run_with $1" "${device_packages[@]}"
}

stress() {
	printf '\n== stress: GOGC=1, GOEXPERIMENT=cgocheck2, lavapipe %s\n' "$(version_of lavapipe)"
	# GOGC for the test alone: the compiler would crawl under it.
	GOEXPERIMENT=cgocheck2 go test -count=1 -timeout "$timeout" -run Stress \
		-exec "env GOGC=1 $run_with lavapipe" ./vk
}

abi() {
	local root
	printf '\n== abi: %s\n' "$(version_of headers)"
	root=$("$deps" path headers) || return 1
	[[ $root == system ]] && root=
	VKATTN_VULKAN_HEADERS=$root/usr/include go test -count=1 -run ABI -v ./vk
}

# fuzz_target <test file> <target> fuzzes one target; its report is the function's output.
# Inputs that an earlier run found interesting are in Go's build cache, and are where
# this one begins.
fuzz_target() {
	local package found log
	package=./$(dirname "$1")
	log=$work/fuzz-$2-${package//\//.}
	if VKATTN_DRIVER=none VKATTN_LIBVULKAN=/nonexistent/libvulkan.so.1 go test -run '^$' -fuzz "^$2\$" \
		-fuzztime "${VKATTN_FUZZ_TIME:-3s}" -parallel 1 -timeout "$timeout" "$package" >"$log" 2>&1; then
		printf 'ok   %s %s: %s\n' "$package" "$2" "$(sed -n 's/^fuzz: elapsed: .*execs: \([0-9]*\).*/\1 runs/p' "$log" | tail -n 1)"
		return
	fi
	printf 'FAIL %s %s\n' "$package" "$2"
	grep -v '^fuzz: elapsed' "$log"
	while IFS= read -r found; do
		printf -- '-- %s\n' "$found"
		cat "$found"
	done < <(git ls-files -o --exclude-standard -- "$package/testdata/fuzz/$2")
	: >"$work/fuzz-failed"
}

# Targets take turns two by two: much of the time of one is go test's.
fuzz() {
	local file target running=0
	printf '\n== fuzz: %s for each target\n' "${VKATTN_FUZZ_TIME:-3s}"
	while IFS=: read -r file target; do
		fuzz_target "$file" "$target" </dev/null >"$work/fuzz-report-$target-${file//\//.}" &
		((++running >= 2)) && wait -n && ((running--))
	done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's|^\./||; s|:func |:|' | sort)
	wait
	cat "$work"/fuzz-report-*
	[[ ! -e $work/fuzz-failed ]]
}

shaders_check() {
	printf '\n== shaders-check: %s\n' "$(version_of glslc)"
	go run ./shaders/build -check -glslc "$bin/glslc" -spirv-val "$bin/spirv-val" || return 1
	GLSLC=$bin/glslc SPIRV_VAL=$bin/spirv-val go test -count=1 ./shaders/build
}

verdict() { # <part> <start> <exit status>
	if (($3)); then
		finish "$1" FAIL $((SECONDS - $2))
	else
		finish "$1" PASS $((SECONDS - $2))
	fi
}

run_part() { # <part>
	local part=$1 start=$SECONDS component device
	case $part in
	native)
		native
		verdict native "$start" $?
		;;
	stress)
		if ! has_go vk; then
			finish stress SKIP 0 'there is no package vk'
		elif ! "$deps" env lavapipe >/dev/null 2>&1; then
			finish stress SKIP 0 "$(reason lavapipe)"
		else
			stress
			verdict stress "$start" $?
		fi
		;;
	abi)
		if ! has_go vk; then
			finish abi SKIP 0 'there is no package vk'
		elif ! "$deps" path headers >/dev/null 2>&1; then
			finish abi SKIP 0 "$(reason headers)"
		else
			abi
			verdict abi "$start" $?
		fi
		;;
	fuzz)
		fuzz
		verdict fuzz "$start" $?
		;;
	shaders-check)
		if ! has_go shaders/build; then
			finish shaders-check SKIP 0 'there is no shaders/build'
		elif [[ ! -x $bin/glslc ]]; then
			finish shaders-check SKIP 0 "$(reason glslc)"
		else
			shaders_check
			verdict shaders-check "$start" $?
		fi
		;;
	*)
		component=$(component_of "$part")
		if ! "$deps" env "$part" >/dev/null 2>&1; then
			finish "$part" SKIP 0 "$(reason "$component")"
		elif ! ((${#device_packages[@]})); then
			finish "$part" SKIP 0 'there are no packages that use a device'
		else
			device=$(device_of "$part")
			printf '\n== %s: %s%s\n' "$part" "$(version_of "$component")" "${device:+; device: $device}"
			on_runner "$part"
			verdict "$part" "$start" $?
		fi
		;;
	esac
}

pids=()
for i in "${!parts[@]}"; do
	while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
	run_part "${parts[i]}" >"$work/$i.log" 2>&1 </dev/null &
	pids[i]=$!
done
for i in "${!parts[@]}"; do
	wait "${pids[i]}"
	cat "$work/$i.log"
done

printf '\n== summary\n'
cat "$work/summary"
if [[ -e $work/failed ]]; then
	echo 'FAIL'
	exit 1
fi
if [[ -e $work/skipped ]] && [[ ${CI-} == true || ${VKATTN_REQUIRE-} == 1 ]]; then
	echo 'FAIL: parts were skipped, and this run requires all of them'
	exit 1
fi
echo 'PASS'
