#!/usr/bin/env bash
# test.sh [--fetch] [part...] runs the tests, part by part:
#
#   native         every test with no Vulkan driver at all (the CPU tier)
#   vet            go vet
#   targets        everything compiles for the targets of platforms.sh, with the gcc that
#                  deps.sh fetches
#   <runner>       the tests that use a device, on one driver (see run-with)
#   stress         the host layer's stress tests with the garbage collector at
#                  its most eager and the runtime checking pointers passed to C
#   abi            the Vulkan ABI declared in vk/abi*.h is the registry's
#   fuzz           each fuzz target for VKATTN_FUZZ_TIME (1s), on top of its seeds,
#                  which are tests of native too; inputs that fail are printed, and
#                  lie in the package's testdata/fuzz, to be committed with the fix
#   shaders-check  the committed SPIR-V is what the sources compile to
#
# RAPID_SEED is the seed of tests of random values: by default a number of the commit's tree.
#
# VKATTN_TEST_LEVEL says which tests run, and which parts if none is named: "default"
# for make test, "full" for what make test leaves out, "all" (unset) for both.
# scripts/deep-tests.txt lists the tests that are not in make test. At the end the run
# names what it left out.
#
# --fetch fetches all drivers and tools first, while the tests compile.
#
# A part whose driver is absent is reported as SKIP with the reason. Where
# CI=true or VKATTN_REQUIRE=1 that fails the run, so that a green run means that
# everything ran. Parts never stop one another; the summary comes last.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

deps=$PWD/scripts/deps.sh
run_with=$PWD/scripts/run-with
mapfile -t runners < <("$deps" runners)
mapfile -t nulls < <("$deps" nulls)
is_null() { [[ " ${nulls[*]} " == *" $1 "* ]]; }
export VKATTN_TEST_LEVEL=${VKATTN_TEST_LEVEL:-all}
level=$VKATTN_TEST_LEVEL
fetch=
if [[ ${1-} == --fetch ]]; then
	fetch=1
	shift
fi
parts=("$@")
for part in "${parts[@]}"; do
	case " ${runners[*]} native vet targets stress abi fuzz shaders-check " in
	*" $part "*) ;;
	*)
		echo "test.sh: no part $part" >&2
		sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
done
# The longest parts come first, and the others give way to lavapipe (run_part), so that no
# processor idles at the end.
if ((!${#parts[@]})); then
	case $level in
	default) parts=(lavapipe lavapipe-old native "${runners[@]:2}" abi) ;;
	full) parts=("${runners[@]}" native fuzz stress shaders-check vet targets) ;;
	all) parts=("${runners[@]}" native fuzz stress shaders-check vet targets abi) ;;
	*)
		echo "test.sh: VKATTN_TEST_LEVEL is '$level', want default, full or all" >&2
		exit 2
		;;
	esac
fi

# Tests of random values draw by the tree of the commit, so that every commit draws other values and a commit the same
# ones on every machine. Without a commit, or with RAPID_SEED=0, each test draws its own.
tree=$(git rev-parse -q --verify 'HEAD^{tree}' 2>/dev/null)
export RAPID_SEED=${RAPID_SEED:-$((16#0${tree:0:15}))}

# Long enough for the slowest package on two cores with eight times the load. A driver that hangs is a
# failure with a stack trace.
timeout=${VKATTN_TEST_TIMEOUT:-2h}

# Drivers on the CPU compile kernels on one core, so parts run in parallel. Each writes to
# its own log; the logs are printed in the order of the parts.
jobs=${VKATTN_TEST_JOBS:-$(($(nproc) + 1))}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

bin=$("$deps" bin)

# What runs where at which level.
table=scripts/deep-tests.txt

# Each package's tests are linked once, for all parts.
binaries=$work/tests
binary() { # <package>
	local name=${1#./}
	printf '%s/%s.test\n' "$binaries" "${name//\//.}"
}

has_go() { [[ -d $1 ]] && [[ -n $(find "$1" -name '*.go' -print -quit) ]]; }

mapfile -t all_packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | sed "s|^$PWD|.|" | grep .)
# The packages whose tests open a device; what the others test is the same on every runner.
mapfile -t device_packages < <(grep -rlE --include='*_test.go' 'vk\.Open|testdevice\.Open|VKATTN_DRIVER' vk attention tests cmd cudapath bindings 2>/dev/null |
	xargs -r -n 1 dirname | sort -u | sed 's|^|./|')

# cpu_seconds sets cpu to the CPU time of all programs that this shell has run.
cpu_seconds() {
	local file=$work/times-$BASHPID
	times >"$file" # $(times) would ask another shell
	cpu=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4 + 0.5) }' "$file")
}

finish() { # <part> <PASS|FAIL|SKIP> <seconds> [reason]
	cpu_seconds
	printf '%-5s %-15s %5d s %5d s  %s\n' "$2" "$1" "$3" "$cpu" "${4-}" >>"$work/summary"
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
	if is_null "$1"; then echo drm-shim; else echo "$1"; fi
}

version_of() { "$deps" versions | sed -n "s/^$1: //p"; }

# The device as the driver names it. Empty where vulkaninfo is missing or cannot
# say: it asks for Vulkan 1.4, which SwiftShader refuses.
device_of() { # <runner>
	local root info
	root=$("$deps" path lavapipe 2>/dev/null) || return 0
	info=$root/usr/bin/vulkaninfo
	[[ $root == system ]] && info=$(command -v vulkaninfo)
	[[ -x $info ]] || return 0
	[[ $1 != swiftshader ]] || return 0
	"$run_with" "$1" "$info" --summary 2>/dev/null | sed -n 's/^[[:space:]]*deviceName[[:space:]]*= //p' | head -n 1
}

# listed <runner> <package> <kind...>: the tests of scripts/deep-tests.txt, as a list for -test.run.
listed() {
	local runner=$1 package=$2 kind on where test all= group=$1
	shift 2
	! is_null "$runner" || group=null
	while read -r kind on where test; do
		if [[ " $* " == *" $kind "* && $where == "$package" ]] && [[ ,$on, == *",$runner,"* || ,$on, == *",$group,"* || $on == all ]]; then
			all+="|$test"
		fi
	done < <(sed 's/#.*//; /^[[:space:]]*$/d' "$table")
	[[ -z $all ]] || printf '^(%s)$\n' "${all:1}"
}

left_out() { # <runner> <package> <tests> <command>
	local tests=${3#^(}
	tests=${tests%)$}
	printf '%s, %s: %s: %s\n' "$1" "$2" "${tests//|/ }" "$4" >>"$work/left-out"
}

# run_package <runner> <package> runs a package's tests as go test would: in its folder.
run_package() {
	local runner=$1 package=$2 deep shared others skip only='' status output start=$SECONDS
	local with=("$run_with" "$runner")
	[[ $runner == native ]] && with=(env VKATTN_DRIVER=none VKATTN_LIBVULKAN=/nonexistent/libvulkan.so.1)
	deep=$(listed "$runner" "$package" deep)
	shared=$(listed "$runner" "$package" shared)
	others=$(listed "$runner" "$package" other)
	skip=$others
	[[ -z $others ]] || left_out "$runner" "$package" "$others" 'other drivers'
	case $level in
	default)
		skip=$(listed "$runner" "$package" deep other)
		[[ -z $deep ]] || left_out "$runner" "$package" "$deep" 'make test-full'
		[[ -z $shared ]] || left_out "$runner" "$package" "$shared" 'the second share of the table is for make test-full'
		;;
	full)
		only=$(listed "$runner" "$package" deep shared)
		[[ -n $only ]] || return 0
		;;
	esac
	[[ ! $skip =~ [\(\|]'.*'[\|\)] ]] || return 0 # all of them
	output=$(cd "$package" && "${with[@]}" "$(binary "$package")" -test.timeout="$timeout" -test.paniconexit0 \
		${skip:+-test.skip="$skip"} ${only:+-test.run="$only"} 2>&1)
	status=$?
	if ((status)); then
		printf '%s\nFAIL' "$output"
	else
		printf 'ok  '
	fi
	printf '  %-36s %5d s\n' "$package" $((SECONDS - start))
	return $status
}

run_packages() { # <runner> <package...>
	local runner=$1 package failed=0
	shift
	for package in "$@"; do
		run_package "$runner" "$package" || failed=1
	done
	return $failed
}

native() {
	printf '\n== native: %s, no Vulkan driver\n' "$(go version)"
	run_packages native "${all_packages[@]}"
}

vet() {
	printf '\n== vet\n'
	go vet ./...
}

on_runner() { # <runner>
	# Not on the null devices: they execute nothing that could be validated, and
	# not twice on lavapipe, whose older version is here for what it lacks.
	case $1 in lavapipe | swiftshader) export VKATTN_VALIDATION=${VKATTN_VALIDATION-1} ;; esac
	# LLVM optimises for longer than these problems run.
	export GALLIVM_PERF=${GALLIVM_PERF-nopt}
	# Vectors of 128 bits compile in half the time. They make subgroups of 4, which the current
	# lavapipe does not have, nor cooperative matrices with them.
	[[ $1 != lavapipe-old ]] || export LP_NATIVE_VECTOR_WIDTH=${LP_NATIVE_VECTOR_WIDTH-128}
	run_packages "$1" "${device_packages[@]}"
}

stress() {
	printf '\n== stress: GOGC=1, GODEBUG=clobberfree=1, lavapipe %s\n' "$(version_of lavapipe)"
	# For the test alone: the compiler would crawl under it. Freed memory is overwritten, so that C reads nothing from it.
	go test -count=1 -vet=off -ldflags='-s -w' -timeout "$timeout" -run Stress \
		-exec "env GOGC=1 GODEBUG=clobberfree=1 $run_with lavapipe" ./vk
}

abi() {
	local root
	printf '\n== abi: %s\n' "$(version_of headers)"
	root=$("$deps" path headers) || return 1
	[[ $root == system ]] && root=
	(cd vk && VKATTN_VULKAN_HEADERS=$root/usr/include "$(binary ./vk)" -test.paniconexit0 -test.run ABI -test.v)
}

# ended_in_time <log>: the end of -fuzztime is all that failed, and no input was written.
ended_in_time() {
	grep -qx '    context deadline exceeded' "$1" && ! grep -q 'Failing input written\|panic:\|fatal error:' "$1"
}

# fuzz_target <test file> <target> fuzzes one target; its report is the function's output.
# Inputs that an earlier run found interesting are in Go's build cache, and are where
# this one begins.
fuzz_target() {
	local package found log try
	package=./$(dirname "$1")
	log=$work/fuzz-$2-${package//\//.}
	# Before Go 1.27 the end of -fuzztime sometimes counts as a failure: go.dev/issue/75804.
	for try in 1 2 3; do
		if VKATTN_DRIVER=none VKATTN_LIBVULKAN=/nonexistent/libvulkan.so.1 go test -vet=off -ldflags='-s -w' -run '^$' -fuzz "^$2\$" \
			-fuzztime "${VKATTN_FUZZ_TIME:-1s}" -parallel 1 -timeout "$timeout" "$package" >"$log" 2>&1; then
			printf 'ok   %s %s: %s\n' "$package" "$2" "$(sed -n 's/^fuzz: elapsed: .*execs: \([0-9]*\).*/\1 runs/p' "$log" | tail -n 1)"
			return
		fi
		ended_in_time "$log" || break
		printf 'again %s %s: its time ended in a run\n' "$package" "$2"
	done
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
	printf '\n== fuzz: %s for each target\n' "${VKATTN_FUZZ_TIME:-1s}"
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
	GLSLC=$bin/glslc SPIRV_VAL=$bin/spirv-val go test -count=1 -vet=off ./shaders/build
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
	[[ $part == lavapipe ]] || renice -n 5 -p "$BASHPID" >/dev/null
	case $part in
	native | vet)
		"$part"
		verdict "$part" "$start" $?
		;;
	targets)
		for component in mingw gcc-arm64; do
			if ! "$deps" "$component" >/dev/null; then
				finish targets SKIP 0 "$(reason "$component")"
				return
			fi
		done
		printf '\n== targets\n'
		scripts/platforms.sh build
		verdict targets "$start" $?
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

# gold links a binary in 2.8 s of CPU time, where the C compiler's usual linker takes 3.9 s.
gold=
! command -v ld.gold >/dev/null || gold=' -extldflags=-fuse-ld=gold'

# build links the tests of the packages that the parts need, and checks that the table
# names tests that there are.
build() {
	local package kind on where test packages=()
	for part in "${parts[@]}"; do
		case $part in
		native) packages+=("${all_packages[@]}") ;;
		vet | stress | abi | fuzz | shaders-check) ;;
		*) packages+=("${device_packages[@]}") ;;
		esac
	done
	if [[ $level == full ]]; then
		mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -Fxf <(awk '/^(deep|shared)/ { print $3 }' "$table"))
	fi
	[[ " ${parts[*]} " != *' abi '* ]] || packages+=(./vk)
	((${#packages[@]})) || return 0
	# Without debug information a link takes half the time; stack traces do not need it. The
	# part vet of make test-full runs go vet, once for all packages.
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
	VKATTN_KEEP_TESTS=$binaries go test -count=1 -vet=off -ldflags="-s -w$gold" -exec "$PWD/scripts/keep-test" \
		"${packages[@]}" >"$work/build" 2>&1 || {
		grep -v '^ok ' "$work/build"
		return 1
	}
	for where in "${packages[@]}"; do
		(cd "$where" && "$(binary "$where")" -test.list . >"$(binary "$where").list")
	done
	while read -r kind on where test; do
		if [[ -x $(binary "$where") ]] && ! grep -q "^$test\$" "$(binary "$where").list"; then
			printf '%s: %s has no %s\n' "$table" "$where" "$test"
			return 1
		fi
	done < <(sed 's/#.*//; /^[[:space:]]*$/d' "$table")
}

mkdir -p "$binaries"
start=$SECONDS
if [[ $fetch ]]; then
	"$deps" all & # what cannot be fetched each part reports
	fetching=$!
fi
if ! build; then
	echo 'FAIL: the tests do not build'
	exit 1
fi
built=$((SECONDS - start))
if [[ $fetch ]]; then
	wait "$fetching"
	go version
	"$deps" versions
fi
cpu_seconds
printf 'tests built in %d s, drivers there after %d s, %d s of CPU time\n' "$built" $((SECONDS - start)) "$cpu"

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

printf '\n== summary: wall-clock and CPU time, RAPID_SEED=%s\n' "$RAPID_SEED"
cat "$work/summary"
if [[ $level == default ]]; then
	echo 'left out: stress, fuzz, shaders-check, vet: make test-full'
elif [[ $level == full ]]; then
	echo 'left out: all that make test runs'
fi
if [[ -e $work/left-out ]]; then
	sort "$work/left-out" | sed 's/^/left out: /'
fi
if [[ -e $work/failed ]]; then
	echo 'FAIL'
	exit 1
fi
if [[ -e $work/skipped ]] && [[ ${CI-} == true || ${VKATTN_REQUIRE-} == 1 ]]; then
	echo 'FAIL: parts were skipped, and this run requires all of them'
	exit 1
fi
echo 'PASS'
