#!/usr/bin/env bash
# gpu-run.sh [tests|bench|all|tune|verify|tables|options|soak|cubin|ranks [check|splits]|backward [step...]|race [entry...]] runs the bundle of gpu-bundle.sh on a machine
# with a GPU. It is in the bundle's root and needs only the GPU's driver. If it finds no GPU it exits with 1: results of
# the CPU would be misleading.
#
# gpu-run.sh vkattn <argument...> runs the command itself, with the loader and the manifest that this script finds.
#
# It writes to $OUT (default: ./out):
#   machine.txt  the GPU, its driver, the clocks
#   tests.txt    the full output of the tests
#   bench.txt    the output of "vkattn bench $VKATTN_BENCH_ARGS"
#   only with tune:
#     tune.txt         the output of "vkattn tune $VKATTN_TUNE_ARGS"
#     tuning.json      the cache after it
#   only with verify:
#     info.txt         the devices, their tiers and CUDA
#     conformance.*    every implementation on the conformance table: summary and rows
#     large.*          every implementation on problems up to batch 16, 8 heads, length 16384
#     examples.txt     the output of the examples
#   only with tables: the tables of conformance and of options in as many processes as there are CPUs. The driver's compiler takes
#   nearly all of the time, so one process alone would take hours. Rows are in the files at once, whatever ends the run
#     tables.md        right, wrong and refused rows of each part, and the wrong ones by name. The exit code is 1 if a row is wrong or
#                      a part did not come to its end
#     tables/PART.jsonl  its rows
#   only with options:
#     options.md       cases, tiers, storage types, worst errors and failures of the tables of options
#     options.jsonl    the same of each case
#     options-*.txt    the output of the tests: the tables, the properties of all problems, and others
#   only with soak: random compositions of options with numbers at the ends of their ranges, on every tier (cpu too), in
#   every storage type and with every KV type, each judged by the formula in float64
#     soak.md          cases, worst errors and failures; each failure says how to run it alone
#     soak.jsonl       each case
#     soak-*.txt       the output of each process
#   only with cubin: kernels launched by VK_NVX_binary_import, in less than 8 minutes
#     cubin.md         errors and times of the kernels, and the answers of the probes
#     cubin-NAME.txt   the output of each test and probe
#     cubin-conformance.*  tier cubin on the conformance table
#     cubin-race.*     tiers cubin, cuda and coopmat2 versus FlashAttention-2 and cuDNN; it needs python3 with PyTorch
#   only with ranks: several GPUs over NCCL, one process each, in less than 10 minutes (scripts/ranks.sh)
#     ranks.md         exit codes and times of the steps, and their tables
#     ranks-NAME.*     rows and messages of each step: verify and bench in each mode, forward and backward, a rank that is killed
#     nccl-*.txt       the warnings of NCCL
#     with ranks check: two ranks on one GPU over TCP, in two processes and in one; forward, gradients and decode, less than 75 s
#     with ranks splits: contiguous, zigzag and striped splits over two GPUs, less than 6 minutes
#   only with backward: gradients, in steps of less than nine minutes each (default: all of them, in this order)
#     tests        backward-tests.txt: the tests of gradients on every tier and in every storage type
#     verify       backward-verify.*: every tier versus the reference, on the conformance table and large problems
#     race alone plain models  ENTRY.md, ENTRY.jsonl: backward versus PyTorch's, and the tables (scripts/race.sh); race is
#                  its entry backward with the tiers coopmat2, coopmat and scalar. They need python3 with PyTorch
#   only with race, which needs python3 with PyTorch:
#     ENTRY.md         the table of each entry of scripts/race.sh
#     ENTRY.jsonl      its raw samples
#
#   VKATTN_DRIVER      native (default): requires a GPU; any other value runs the bundle without one
#   VKATTN_TEST_ARGS   further arguments of every test binary (-test.run ...)
#   VKATTN_TESTS       the packages tested, a pattern of the shell (default: *)
#   VKATTN_VERIFY_ARGS the problems of large.* (default: --suite forward,dims,gqa --dtype f16,bf16)
#   VKATTN_TABLES      the parts of tables, as words: PASS:TIER:TYPE or PASS:cuda/FAMILY:TYPE, with options: in front for the table of
#                      options (default: gradients of every tier and family in every type)
#   VKATTN_TABLES_LIMIT seconds that tables takes (default: 540)
#   VKATTN_OPTIONS_LIMIT seconds that options may take (default: 540; an H200 with 16 cores takes 340 to 420, with 32 265 to 310)
#   VKATTN_SOAK_SECONDS seconds that soak takes (default: 540); cases under way are then stopped
#   VKATTN_SOAK_SEED   seed of the compositions (default: random; printed, and in soak.md)
#   VKATTN_SOAK_CASE   the only case to run, as failures name it
#   VKATTN_SOAK_MODIFIERS  set: every composition has modifiers, and most without quantized K and V have gradients
#   VKATTN_SOAK_TARGETS, VKATTN_SOAK_PROCESSES: see src/tests/soak_test.go
#   VKATTN_RANKS       GPUs of ranks (default: 2; three and more have steps of their own)
#   VKATTN_RANKS_LIMIT, VKATTN_RANKS_TRANSPORT, VKATTN_RANKS_TIERS, VKATTN_RANKS_SHRINK: see src/scripts/ranks.sh
#   VKATTN_VERIFY_LIMIT seconds each part of verify may take (default: 400)
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=${1:-all}
case $what in
tests | bench | all | tune | verify | tables | options | soak | cubin | ranks | backward | race | vkattn) ;;
*)
	echo "gpu-run: no entry $what" >&2
	sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export OUT VKATTN_DRIVER=${VKATTN_DRIVER:-native}

libraries=$(ldconfig -p 2>/dev/null)
has_library() { grep -qF "$1" <<<"$libraries"; }

# A driver without a loader is common in containers.
if [[ -z ${VKATTN_LIBVULKAN-} ]] && ! has_library libvulkan.so.1 && [[ -r $here/lib/libvulkan.so.1 ]]; then
	export VKATTN_LIBVULKAN=$here/lib/libvulkan.so.1
fi

# NVIDIA's driver opens libEGL.so.1 even where there is no display, and gives the loader
# nothing without it. Last in the path, and in a folder of its own: it shadows nothing.
if ! has_library libEGL.so.1 && [[ -r $here/lib/egl/libEGL.so.1 ]]; then
	export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/lib/egl
fi

# A driver without a manifest, or with one where no loader looks, is common there too.
if [[ -z ${VK_DRIVER_FILES-}${VK_ICD_FILENAMES-} ]] &&
	! compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null && ! compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null; then
	found=$(find /usr/local /opt -path '*/vulkan/icd.d/nvidia_icd.json' -print -quit 2>/dev/null)
	if [[ -z $found ]] && has_library libGLX_nvidia.so.0; then
		found=$(mktemp --suffix .json)
		echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}' >"$found"
	fi
	# Both names: loaders before 1.3.207 read the second.
	[[ -n $found ]] && export VK_DRIVER_FILES=$found VK_ICD_FILENAMES=$found
fi

{
	date -u +%FT%TZ
	uname -srm
	echo "loader: ${VKATTN_LIBVULKAN:-default}, manifest: ${VK_DRIVER_FILES:-default}"
	echo "LD_LIBRARY_PATH: ${LD_LIBRARY_PATH-}"
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu --format=csv
	fi
} >"$OUT/machine.txt" 2>&1
cat "$OUT/machine.txt" >&2

# Whether "vkattn info" on standard input lists a device that can be used and is no driver of the CPU.
lists_gpu() {
	awk '/^[0-9]+: / { gpu = !/\(cpu\)$/; n += gpu } /^   not usable: / { n -= gpu } END { exit !n }'
}
if [[ $VKATTN_DRIVER == native && -x $here/vkattn ]]; then
	info=$(timeout 60 "$here/vkattn" info 2>&1)
	if ! lists_gpu <<<"$info"; then
		{
			printf '%s\n\n' "$info"
			printf '*** gpu-run: NO GPU: Vulkan finds none that can be used, nothing was run (VKATTN_DRIVER=%s)\n' "$VKATTN_DRIVER"
		} | tee -a "$OUT/machine.txt" >&2
		exit 1
	fi
fi

if [[ $what == vkattn ]]; then
	exec "$here/vkattn" "${@:2}"
fi
rc=0
if [[ $what == tests || $what == all ]]; then
	: >"$OUT/tests.txt"
	summary=''
	for test in "$here"/tests/${VKATTN_TESTS:-*}.test; do
		[[ -x $test ]] || continue
		name=$(basename "$test" .test)
		# As go test does: in the package's folder.
		cd "$here/src/${name//.//}" || exit 1
		start=$SECONDS
		echo "=== $name" >>"$OUT/tests.txt"
		log=$(mktemp)
		# shellcheck disable=SC2086 # the arguments are words
		if VKATTN_TEST_LEVEL=${VKATTN_TEST_LEVEL:-all} "$test" -test.timeout 8m -test.v ${VKATTN_TEST_ARGS-} >"$log" 2>&1; then
			summary+="ok    $name  $((SECONDS - start)) s"$'\n'
		else
			summary+="FAIL  $name  $((SECONDS - start)) s"$'\n'
			rc=1
			# Enough on the screen to know what to look for in the file.
			grep -E -A 12 '^ *--- FAIL|^panic:|^fatal error' "$log" | head -n 60
		fi
		cat "$log" >>"$OUT/tests.txt"
		rm -f "$log"
	done
	printf '%s' "$summary" | tee -a "$OUT/tests.txt"
	cd "$here" || exit 1
fi
if [[ $what == bench || $what == all ]] && [[ -x $here/vkattn ]]; then
	# shellcheck disable=SC2086 # the arguments are words
	"$here/vkattn" bench ${VKATTN_BENCH_ARGS-} 2>&1 | tee "$OUT/bench.txt" || rc=1
	# A GPU that is listed may fail to open; the numbers of the CPU would mislead.
	! grep -q '^vkattn: .*; computing on the CPU$' "$OUT/bench.txt" || rc=1
fi
if [[ $what == tune ]]; then
	# shellcheck disable=SC2086 # the arguments are words
	"$here/vkattn" tune ${VKATTN_TUNE_ARGS-} 2>&1 | tee "$OUT/tune.txt" || rc=1
	"$here/vkattn" tune --list -o json >"$OUT/tuning.json" || rc=1
fi
verify() { # <name> <arguments...>
	local name=$1 start=$SECONDS status
	shift
	# jsonl prints each row at once, so that finished rows survive a stop.
	timeout --signal INT --kill-after 15 "${VKATTN_VERIFY_LIMIT:-400}" \
		"$here/vkattn" verify "$@" -o jsonl --save "$OUT/$name.md" >"$OUT/$name.jsonl" 2>"$OUT/$name.err"
	status=$?
	((status)) && rc=1
	printf '== verify %s: exit %d after %d s\n' "$name" "$status" $((SECONDS - start)) | tee "$OUT/$name.txt"
	tee -a "$OUT/$name.txt" <"$OUT/$name.err"
	rm -f "$OUT/$name.err"
	[[ -r $OUT/$name.md ]] && cat "$OUT/$name.md"
}
if [[ $what == verify ]]; then
	"$here/vkattn" info | tee "$OUT/info.txt"
	verify conformance --suite conformance --repeat 2
	# shellcheck disable=SC2086 # the arguments are words
	verify large ${VKATTN_VERIFY_ARGS---suite forward,dims,gqa --dtype f16,bf16}
	for example in "$here"/examples/*; do
		[[ -x $example ]] || continue
		timeout 120 "$example" 2>&1
		status=$?
		printf '== %s: exit %d\n' "$(basename "$example")" "$status"
		((status)) && rc=1
	done > >(tee "$OUT/examples.txt")
	wait $!
fi
if [[ $what == tables ]]; then
	parts=${VKATTN_TABLES-}
	if [[ -z $parts ]]; then
		for dtype in f16 bf16 f32; do
			parts+=" bwd:scalar:$dtype bwd:coopmat:$dtype bwd:coopmat2:$dtype"
			[[ $dtype == f32 ]] || parts+=" bwd:cuda/fa3:$dtype bwd:cuda/fa2:$dtype options:bwd:cuda/fa3:$dtype options:bwd:cuda/fa2:$dtype"
		done
	fi
	rm -rf "$OUT/tables" "$OUT/tables.md"
	mkdir -p "$OUT/tables"
	end=$(($(date +%s) + ${VKATTN_TABLES_LIMIT:-540}))
	# Cases of a part by head dim, or by option, so that a process compiles what few others do.
	shards=('^d1[.]|^d[23]' '^d[4-7]' '^d[89]|^d1[01]' '^d1[2-9]|^[^d]')
	options=('^[ac]' '^b' '^[d-l]' '^[m-q]|^random' '^r[^a]|^s' '^[t-z]')
	for part in $parts; do
		IFS=: read -ra words <<<"${part#options:}"
		args="--pass ${words[0]} --tier ${words[1]%%/*} --dtype ${words[2]}"
		[[ ${words[1]} == */* ]] && args+=" --cuda-kernel ${words[1]#*/}"
		name=$(tr ':/' '--' <<<"$part")
		suite=conformance
		patterns=("${shards[@]}")
		[[ $part == options:* ]] && suite=options patterns=("${options[@]}")
		for i in "${!patterns[@]}"; do echo "$name-$i $args --suite $suite --case ${patterns[i]}"; done
	done | xargs -P "$(nproc)" -L 1 bash -c '
		here=$1 end=$2 name=$3 left=$(($2 - $(date +%s)))
		: >"$OUT/tables/$name.jsonl"
		echo "not run, the time is up" >"$OUT/tables/$name.txt"
		((left < 5)) || timeout --signal INT --kill-after 10 "$left" "$here/vkattn" verify "${@:4}" -o jsonl >"$OUT/tables/$name.jsonl" 2>"$OUT/tables/$name.txt"
		exit 0' tables "$here" "$end"
	{
		printf '| part | right | wrong | refused | not reached | end |\n|---|---:|---:|---:|---:|---|\n'
		for file in "$OUT"/tables/*.jsonl; do
			status() { grep -c "\"status\":\"$1\"" "$file"; }
			printf '| %s | %d | %d | %d | %d | %s |\n' "$(basename "$file" .jsonl)" "$(status ok)" "$(status FAIL)" "$(status unsupported)" \
				"$(status interrupted)" "$(tail -n 1 "${file%.jsonl}.txt" | cut -c 1-120)"
		done
		grep -h '"status":"FAIL"' "$OUT"/tables/*.jsonl | grep -oE '"(implementation|dtype|case)":"[^"]*"|"reasons":\["[^"]{0,200}' | sed 's/^/    /'
	} | tee "$OUT/tables.md"
	if grep -q '"status":"FAIL"' "$OUT"/tables/*.jsonl || grep -qE '^(vkattn: interrupted|not run)' "$OUT"/tables/*.txt; then
		rc=1
	fi
fi
# The driver's compiler takes nearly all of the time, on all CPUs. The tables compile in
# parallel in one process; the other processes use the CPUs that its last cases leave idle.
if [[ $what == options ]]; then
	test=$here/tests/tests.test
	export VKATTN_TEST_LEVEL=exhaustive VKATTN_TEST_LOG=$OUT/options.jsonl
	rm -f "$OUT"/options{,-tables,-properties,-params,-others,-exits}.{jsonl,md,txt}
	: >"$VKATTN_TEST_LOG"
	cd "$here/src/tests" || exit 1
	start=$SECONDS
	part() { # <name> <arguments of the test binary...>
		local name=$1 status
		shift
		# The journal and the output have the cases that finished before a stop.
		timeout --kill-after 5 "${VKATTN_OPTIONS_LIMIT:-540}" "$test" -test.v -test.timeout 0 "$@" >"$OUT/options-$name.txt" 2>&1
		status=$?
		printf '== options, %s: exit %d after %d s\n' "$name" "$status" $((SECONDS - start)) | tee -a "$OUT/options-exits.txt"
		grep -E -A 12 '^ *--- FAIL|^panic:|^fatal error' "$OUT/options-$name.txt" | head -n 60
		return "$status"
	}
	pids=()
	part tables -test.run '^TestOptionsConformance$' &
	pids+=($!)
	part properties -test.run '^TestOptionsProperty' -rapid.checks 12 &
	pids+=($!)
	part params -test.run '^TestOptionsParams' &
	pids+=($!)
	part others -test.run 'Options|Append|Merge|Rota' -test.skip '^TestOptions(Conformance$|Property|Params)' -rapid.checks 12 &
	pids+=($!)
	for pid in "${pids[@]}"; do
		wait "$pid" || rc=1
	done
	"$test" -report "$OUT/options.md" "$VKATTN_TEST_LOG" || rc=1
	{
		printf 'Other tests of options, and of appending and merging:\n\n'
		sed 's/^== options, /- /' "$OUT/options-exits.txt"
		sed -n 's/^--- \([A-Z]*\): \(.*\)$/- \1 \2/p' "$OUT"/options-{properties,params,others}.txt
	} >>"$OUT/options.md"
	cat "$OUT/options.md"
	cd "$here" || exit 1
fi
# A launch that fails loses the device, and maybe the driver's state in the process: a process for each probe.
if [[ $what == cubin ]]; then
	rm -f "$OUT"/cubin.md "$OUT"/cubin-*.txt
	start=$SECONDS
	cubin() { # <name> <seconds> <folder> <arguments of the test binary...>
		local name=$1 limit=$2 folder=$3 status
		shift 3
		((SECONDS - start + limit > 470)) && limit=$((470 - SECONDS + start))
		if ((limit < 5)); then
			printf -- '- %s: not run, the time is up\n' "$name" | tee -a "$OUT/cubin.md"
			return 1
		fi
		(cd "$here/src/$folder" && timeout --kill-after 5 "$limit" "$here/tests/$folder.test" -test.v -test.count 1 -test.timeout 0 "$@") >"$OUT/cubin-$name.txt" 2>&1
		status=$?
		{
			printf -- '- %s: exit %d after %d s\n' "$name" "$status" $((SECONDS - start))
			sed -nE 's/^.*(PROBE|RESULT) /    /p' "$OUT/cubin-$name.txt"
			grep -E -A 8 '^ *--- (FAIL|SKIP)|^panic:|^fatal error' "$OUT/cubin-$name.txt" | head -n 40
		} | tee -a "$OUT/cubin.md"
		return "$status"
	}
	probe() { # <question...>
		VKATTN_CUBIN_PROBE="$*" cubin "$(tr ' ' - <<<"$*")" 40 vk -test.run '^TestCubinProbe$'
	}
	printf 'VK_NVX_binary_import. A probe that exits with 1 has found a limit.\n\n' >"$OUT/cubin.md"
	"$here/vkattn" info >"$OUT/info.txt" 2>&1
	# A launch that must work first: without it nothing else can.
	probe shared 16384 || rc=1
	cubin kernels 60 cudapath -test.run '^TestCubinGPU(Attention|MaskedSlots|Sequences)$' || rc=1
	VKATTN_VERIFY_LIMIT=60 verify cubin-conformance --suite conformance --tier cubin --dtype f16,bf16 --repeat 2
	cubin times 60 cudapath -test.run '^TestCubinGPUSpeed$' || rc=1
	# Both head dims at a short and a long length first: a stopped run is of use.
	: >"$OUT/cubin-race.jsonl"
	for lengths in 1024,4096 2048,8192,16384; do
		timeout --signal INT --kill-after 15 120 "$here/vkattn" bench --suite forward --seqlen "$lengths" --tier cubin,cuda,coopmat2 --dtype f16 -r 10 \
			--peer "python3 $here/src/scripts/peer_torch.py flash" --peer "python3 $here/src/scripts/peer_torch.py cudnn" \
			-o jsonl --save "$OUT/cubin-race-${lengths%%,*}.md" >>"$OUT/cubin-race.jsonl" 2>>"$OUT/cubin-race.txt" || rc=1
		tail -n 4 "$OUT/cubin-race-${lengths%%,*}.md"
	done
	# Beyond 48128 bytes the process hangs (docs/log/cubin.md): that is not asked again.
	probe validation || true
	probe sm_80 16384 || true
	probe resident 23552 264 || true
	probe shared 48128 || true
fi
if [[ $what == soak ]]; then
	rm -f "$OUT"/soak.{md,jsonl} "$OUT"/soak-*.txt
	cd "$here/src/tests" || exit 1
	VKATTN_SOAK_SECONDS=${VKATTN_SOAK_SECONDS:-540} "$here/tests/tests.test" -test.run '^TestSoak$' -test.timeout 0 || rc=1
	cd "$here" || exit 1
fi
if [[ $what == ranks ]]; then
	VKATTN=$here/vkattn VKATTN_RANKS_TESTS=$here/tests "$here/src/scripts/ranks.sh" "${@:2}" || rc=1
fi
if [[ $what == backward ]]; then
	steps=("${@:2}")
	((${#steps[@]})) || steps=(tests verify race alone plain models)
	for step in "${steps[@]}"; do
		start=$SECONDS
		status=0
		case $step in
		tests)
			# What fails first is told first: the table of gradients, then dropout, lengths and goldens, then calls.
			for run in tests:TestBackwardConformance 'tests:TestBackward(Of|Dropout|Refuses)|GoldenGradients' attention:Backward; do
				package=${run%%:*} log=$(mktemp)
				cd "$here/src/$package" || exit 1
				VKATTN_TEST_LEVEL=all timeout --kill-after 5 170 \
					"$here/tests/$package.test" -test.v -test.timeout 0 -test.run "${run#*:}" >"$log" 2>&1 || status=1
				grep -E -A 12 '^ *--- FAIL|^panic:|^fatal error' "$log" | head -n 60
				cat "$log" >>"$OUT/backward-tests.txt"
				rm -f "$log"
			done
			cd "$here" || exit 1
			;;
		verify)
			"$here/vkattn" info >"$OUT/info.txt"
			rc_before=$rc rc=0
			VKATTN_VERIFY_LIMIT=240 verify backward-verify --suite conformance --pass bwd
			VKATTN_VERIFY_LIMIT=240 verify backward-large --suite forward --pass bwd --dtype f16,bf16
			status=$rc rc=$rc_before
			;;
		race)
			VKATTN=$here/vkattn VKATTN_RACE_BACKWARD_TIERS=coopmat2,coopmat,scalar "$here/src/scripts/race.sh" backward || status=1
			;;
		alone | plain | models) VKATTN=$here/vkattn "$here/src/scripts/race.sh" "$step" || status=1 ;;
		*)
			echo "gpu-run: backward has no step $step" >&2
			status=1
			;;
		esac
		((status)) && rc=1
		printf '== backward %s: exit %d after %d s\n' "$step" "$status" $((SECONDS - start))
	done
fi
if [[ $what == race ]]; then
	VKATTN=$here/vkattn "$here/src/scripts/race.sh" "${@:2}" || rc=1
fi
exit "$rc"
