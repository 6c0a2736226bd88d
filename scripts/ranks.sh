#!/usr/bin/env bash
# ranks.sh [check|splits] runs attention over several GPUs, a process each, with the built command. gpu-run.sh ranks runs
# it from a bundle. Without a word the number of GPUs decides the steps:
#
#   two GPUs       verify and bench in each mode, forward and backward, decode, a rank that is killed, a soak; less than 8 minutes
#   three or more  verify in each mode, 2d as groups of N/2 ranks; ring of 65,536 to 1,048,576 rows, ulysses and 2d of 16 sequences
#                  of 16,384, gradients, decode, a rank that is killed; less than 10 minutes. Each time is compared with one GPU's
#                  time of the same problem, and each row has the memory of a call next to that of the plan
#   check          two ranks on one GPU over TCP, in two processes and in one; forward, gradients and decode; less than 75 s
#   splits         contiguous, zigzag and striped splits of two GPUs: verify in each mode, forward and backward, f16 and bf16, the
#                  striped ones 20 times, less than 4 minutes; then times of the splits and of decode, less than 2 minutes
#
# It takes libnccl.so.2 of the system, or that of PyTorch's wheel. NVLink multicast stays off. A step is a process of its
# own with a limit on its time, and one that is stopped keeps the rows that it printed until then. $OUT (default: ./out) gets
#
#   ranks.md         exit codes and times of the steps, then their tables
#   ranks-NAME.*     rows and messages of each step
#   ranks-memory.csv memory of each GPU every second (nvidia-smi)
#   nccl-*.txt       the warnings of NCCL
#
#   VKATTN                  the command (default: build/vkattn)
#   VKATTN_RANKS            GPUs (default: 2)
#   VKATTN_RANKS_TRANSPORT  nccl (default) or tcp, for a trial without NCCL
#   VKATTN_RANKS_TIERS      tiers (default: coopmat2, and cuda where it has the call; of check: scalar,coopmat,coopmat2)
#   VKATTN_RANKS_SHRINK     divides lengths, and leaves 4 heads of dim 16; limits are ten times as long: for a trial without GPUs (default: 1)
#   VKATTN_RANKS_LIMIT      seconds of all steps (default: 470; of three or more GPUs 560, check 60, splits 360)
#   VKATTN_RANKS_TESTS      the folder of test binaries of a bundle; check runs those of one process
set -uo pipefail

what=${1-}
case $what in
'' | check | splits) ;;
*)
	echo "ranks: no entry $what" >&2
	sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
VKATTN=$(realpath -- "${VKATTN:-$(dirname "${BASH_SOURCE[0]}")/../build/vkattn}")
[[ -z ${VKATTN_RANKS_TESTS-} ]] || VKATTN_RANKS_TESTS=$(realpath -- "$VKATTN_RANKS_TESTS")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [[ ! -x $VKATTN ]]; then
	echo "ranks: $VKATTN is not there; make build makes it" >&2
	exit 1
fi
shrink=${VKATTN_RANKS_SHRINK:-1} slow=$((${VKATTN_RANKS_SHRINK:-1} > 1 ? 10 : 1))
n=${VKATTN_RANKS:-2} transport=${VKATTN_RANKS_TRANSPORT:-nccl} limit_of_all=470 start=$SECONDS rc=0
case $what in
check) transport=tcp limit_of_all=60 ;;
splits) limit_of_all=360 ;;
*) ((n < 3)) || limit_of_all=560 ;;
esac
limit_of_all=${VKATTN_RANKS_LIMIT:-$((limit_of_all * slow))}
rm -f "$OUT"/ranks.md "$OUT"/ranks-* "$OUT"/nccl-*.txt

if [[ -z ${VKATTN_LIBNCCL-} ]] && ! ldconfig -p 2>/dev/null | grep -qF libnccl.so.2; then
	found=$(python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))' 2>/dev/null)
	[[ -r $found ]] && export VKATTN_LIBNCCL=$found
fi
# NVLink multicast is not needed here, and a fault in it can take a host's GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export NCCL_DEBUG=${NCCL_DEBUG:-WARN} NCCL_DEBUG_FILE=$OUT/nccl-%p.txt
{
	echo "NCCL: ${VKATTN_LIBNCCL:-libnccl.so.2 of the system}; $n ranks, transport $transport"
	command -v nvidia-smi >/dev/null && nvidia-smi topo -m
} 2>&1 | tee "$OUT/ranks-machine.txt"
"$VKATTN" info >"$OUT/info.txt" 2>&1

# Problems. A trial divides lengths.
at() { # <lengths with commas>
	local list='' x
	for x in ${1//,/ }; do
		x=$((x / shrink))
		list+=,$((x > 40 || shrink == 1 ? x : 40))
	done
	echo "${list#,}"
}
large=(--nheads 32 --nheads-kv 8 --headdim 128) small=(--nheads 8 --nheads-kv 2 --batch-size 2 --headdim 128) parts=(--nheads 8 --nheads-kv 4 --batch-size 2 --headdim 128)
((shrink > 1)) && large=(--nheads 4 --nheads-kv 2 --headdim 16) small=(--nheads 4 --nheads-kv 2 --batch-size 2 --headdim 16) parts=("${small[@]}")
matrices=(--tier "${VKATTN_RANKS_TIERS:-coopmat2}") forward=(--tier "${VKATTN_RANKS_TIERS:-coopmat2,cuda}")

left() { echo $((limit_of_all - SECONDS + start)); }

# A step is a process of its own. If its time is up, its file has the rows that it printed until then.
step() { # <name> <seconds> <command of vkattn> <arguments...>
	local name=$1 limit=$(($2 * slow)) begin=$SECONDS status
	shift 2
	((limit > $(left))) && limit=$(left)
	if ((limit < 5)); then
		printf -- '- %s: not run, the time is up\n' "$name" | tee -a "$OUT/ranks.md"
		rc=1
		return 1
	fi
	timeout --signal INT --kill-after 15 "$limit" "$VKATTN" "$1" --ranks "$n" --transport "$transport" "${@:2}" \
		-o jsonl --save "$OUT/ranks-$name.md" >"$OUT/ranks-$name.jsonl" 2>"$OUT/ranks-$name.txt"
	status=$?
	{
		printf -- '- %s: exit %d after %d s: %s %s\n' "$name" "$status" $((SECONDS - begin)) "$1" "${*:2}"
		tail -n 4 "$OUT/ranks-$name.txt" | cut -c 1-400 | sed 's/^/    /'
	} | tee -a "$OUT/ranks.md"
	((status)) && rc=1
	return "$status"
}

# The first step compiles little. If it fails, NCCL says more, and TCP tells whether it is NCCL that fails.
first() {
	local problem=(--tier "${VKATTN_RANKS_TIERS:-scalar}" --batch-size 1 --nheads 4 --seqlen 256 --headdim 64 --dtype f16 --seed 1)
	step first 60 verify "${problem[@]}" && return
	NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$OUT/nccl-info-%p.txt step info 40 verify "${problem[@]}" --parallel allgather
	transport=tcp step tcp 40 verify "${problem[@]}"
}

# A rank that is killed: the others end and name it.
killed() {
	local victim=$((n - 1)) parent pid begin status watchdog found=''
	if (($(left) < 40)); then
		printf -- '- killed: not run, the time is up\n' | tee -a "$OUT/ranks.md"
		rc=1
		return
	fi
	"$VKATTN" verify --ranks "$n" --transport "$transport" --parallel ring --tier "${VKATTN_RANKS_TIERS:-scalar}" --seqlen "$(at 4096)" --nheads 8 --headdim 64 --dtype f16 \
		--causal none --repeat 100000 --save "$OUT/ranks-killed.md" >"$OUT/ranks-killed.txt" 2>&1 &
	parent=$!
	sleep 12
	for pid in $(cat "/proc/$parent/task/"*/children 2>/dev/null); do
		tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "RANK=$victim" && found=$pid
	done
	[[ -n $found ]] && kill -KILL "$found"
	begin=$SECONDS
	(sleep $((60 * slow)) && kill "$parent") 2>/dev/null &
	watchdog=$!
	wait "$parent"
	status=$?
	kill "$watchdog" 2>/dev/null
	{
		printf -- '- killed: exit %d, %d s after rank %d (process %s) was killed\n' "$status" $((SECONDS - begin)) "$victim" "${found:-not found}"
		tail -n 4 "$OUT/ranks-killed.txt" | cut -c 1-400 | sed 's/^/    /'
		find "$OUT" -name '.ranks-*' -printf '    left: %f\n'
	} | tee -a "$OUT/ranks.md"
	grep -q "rank $victim" "$OUT/ranks-killed.txt" && ! compgen -G "$OUT/.ranks-*" >/dev/null || rc=1
}

two() {
	first
	step verify 75 verify "${forward[@]}" --dtype f16 --seqlen "$(at 1000,4096)" --seqlen-k "$(at 4096)" "${small[@]}" --repeat 3
	step overlap 40 verify --parallel ring --schedule overlap "${matrices[@]}" --dtype f16 --seqlen "$(at 1000,4096)" --seqlen-k "$(at 4096)" "${small[@]}" --repeat 3
	((shrink > 1)) || step conformance 75 verify --suite conformance --case '^d(64|128)[.]' "${matrices[@]}" --dtype f16
	for mode in ring ulysses allgather; do
		step "bench-$mode" 45 bench --parallel "$mode" "${forward[@]}" --seqlen "$(at 65536)" "${large[@]}" --dtype f16 -r 8
	done
	step gradients 40 verify --pass bwd --tier "${VKATTN_RANKS_TIERS:-scalar,coopmat2}" --dtype f16 --seqlen "$(at 1000)" --seqlen-k "$(at 1500)" "${small[@]}" --repeat 3
	step bench-gradients 45 bench --pass bwd --parallel ring,ulysses "${matrices[@]}" --seqlen "$(at 32768)" "${large[@]}" --dtype f16 --causal bottom-right -r 5
	step bench-sequences 30 bench --parallel ulysses,ring "${forward[@]}" --batch-size 16 --seqlen "$(at 16384)" "${large[@]}" --dtype f16 --causal bottom-right -r 8
	step decode 25 verify --parallel decode --tier "${VKATTN_RANKS_TIERS:-scalar,coopmat,coopmat2}" --batch-size 4 "${large[@]}" --seqlen 1,4 --seqlen-k "$(at 8192)" \
		--causal bottom-right --dtype f16 --repeat 5
	bench_decode
	killed
	step bench-long 45 bench --parallel ring "${matrices[@]}" --seqlen "$(at 262144)" "${large[@]}" --dtype f16 --causal bottom-right -r 3 --warmup 10ms
	# A soak: random lengths, the same bits in each of many runs.
	for ((i = 0; $(left) > 25; i++)); do
		step "soak-$i" 45 verify "${matrices[@]}" --dtype f16,bf16 --batch-size $((1 + RANDOM % 2)) --nheads 8 --nheads-kv 4 --headdim 64,128 \
			--seqlen "$(at $((1 + RANDOM % 5000)))" --seqlen-k "$(at $((1 + RANDOM % 5000)))" --repeat 20 || break
	done
}

bench_decode() {
	step bench-decode 40 bench --parallel decode --tier "${VKATTN_RANKS_TIERS:-auto}" --batch-size 1 "${large[@]}" --seqlen 1 --seqlen-k "$(at 131072,1048576)" --causal none --dtype f16 -r 30
}

# What is worth most comes first: the last step takes a third of the time.
many() {
	local groups=(--parallel ring,ulysses,allgather,2d --inner $((n / 2)) --causal none,bottom-right)
	local even=("${parts[@]}")
	((n > 4)) && even+=(--nheads $((2 * n)) --nheads-kv "$n")
	first
	step verify 50 verify "${groups[@]}" "${matrices[@]}" --dtype f16 --seqlen "$(at 1000,4096)" --seqlen-k "$(at 4096)" "${even[@]}" --repeat 3
	step bench-ring 45 bench --parallel ring "${matrices[@]}" --seqlen "$(at 65536)" "${large[@]}" --dtype f16 -r 8
	step bench-sequences 60 bench --parallel ulysses,2d --inner $((n / 2)) "${matrices[@]}" --batch-size 16 --seqlen "$(at 16384)" "${large[@]}" --dtype f16 -r 5
	step gradients 50 verify --pass bwd "${groups[@]}" "${matrices[@]}" --dtype f16 --seqlen "$(at 1000)" --seqlen-k "$(at 1500)" "${even[@]}" --repeat 3
	step bench-gradients 100 bench --pass bwd --parallel ring,ulysses "${matrices[@]}" --seqlen "$(at 32768)" "${large[@]}" --dtype f16 --causal bottom-right -r 5
	step decode 20 verify --parallel decode --tier "${VKATTN_RANKS_TIERS:-scalar,coopmat2}" --batch-size 2 "${large[@]}" --seqlen 1,4 --seqlen-k "$(at 8192)" --causal bottom-right --dtype f16 --repeat 3
	bench_decode
	killed
	step striped 40 verify --split striped "${groups[@]}" "${matrices[@]}" --dtype f16 --seqlen "$(at 1000)" "${even[@]}" --repeat 3
	step overlap 30 verify --parallel ring,2d --inner $((n / 2)) --schedule overlap "${matrices[@]}" --dtype f16 --causal none,bottom-right --seqlen "$(at 1000)" "${even[@]}" --repeat 3
	step bench-long 70 bench --parallel ring "${matrices[@]}" --seqlen "$(at 262144)" "${large[@]}" --dtype f16 -r 3 --warmup 10ms
	# A call takes seconds: it is not repeated.
	for causal in bottom-right none; do
		step "bench-longest-$causal" 170 bench --parallel ring "${matrices[@]}" --seqlen "$(at 1048576)" "${large[@]}" --dtype f16 --causal "$causal" --run-once
	done
}

# Rows of a rank of a striped split are at most 1,024, so that a call for each row is within the limit.
splits() {
	local verify_end modes=(--parallel ring,ulysses,allgather,2d --inner 1) types=(--dtype f16,bf16 --causal none,bottom-right)
	local chunks=(--split contiguous,zigzag --repeat 3) striped=(--split striped --repeat 20)
	verify_end=$(($(left) - 235 * slow))
	within() { # <name> <seconds> <arguments of verify...>: verify ends in time for bench
		local room=$((($(left) - verify_end) / slow))
		step "$1" $(($2 < room ? $2 : room)) verify "${@:3}"
	}
	within striped 50 "${modes[@]}" "${striped[@]}" "${matrices[@]}" "${types[@]}" --seqlen "$(at 2000)" "${parts[@]}"
	within gradients-striped 80 --pass bwd "${modes[@]}" "${striped[@]}" "${matrices[@]}" "${types[@]}" --seqlen "$(at 1000)" "${parts[@]}"
	within overlap-striped 25 --parallel ring,2d --inner 1 --schedule overlap "${striped[@]}" "${matrices[@]}" "${types[@]}" --seqlen "$(at 2000)" "${parts[@]}"
	# Rows of 33 elements are not whole words: other copies.
	within odd-striped 20 --parallel ring,ulysses,allgather "${striped[@]}" --tier "${VKATTN_RANKS_TIERS:-scalar}" --dtype f16 --causal none,bottom-right --batch-size 2 --nheads 4 --seqlen "$(at 501)" \
		--headdim 33
	within chunks 45 "${modes[@]}" "${chunks[@]}" "${matrices[@]}" "${types[@]}" --seqlen "$(at 2000)" "${parts[@]}"
	[[ -n ${VKATTN_RANKS_TIERS-} ]] || within striped-cuda 25 "${modes[@]}" "${striped[@]}" --tier cuda "${types[@]}" --seqlen "$(at 2000)" "${parts[@]}"
	within gradients-chunks 50 --pass bwd "${modes[@]}" "${chunks[@]}" "${matrices[@]}" "${types[@]}" --seqlen "$(at 1000)" "${parts[@]}"
	step bench-splits 80 bench --parallel ring --split contiguous,zigzag,striped "${matrices[@]}" --seqlen "$(at 65536)" "${large[@]}" --dtype f16 -r 8
	bench_decode
}

check() {
	local problem=(--tier "${VKATTN_RANKS_TIERS:-scalar,coopmat,coopmat2}" --batch-size 2 --nheads 8 --nheads-kv 2 --headdim 64 --dtype f16 --seed 1)
	step forward 20 verify "${problem[@]}" --seqlen 301 --seqlen-k 517 --causal none,top-left,bottom-right --repeat 3
	step overlap 15 verify "${problem[@]}" --parallel ring --schedule overlap --seqlen 301 --seqlen-k 517 --causal none,bottom-right --repeat 2
	step gradients 25 verify "${problem[@]}" --pass bwd --seqlen 301 --seqlen-k 517 --causal none,bottom-right --repeat 2
	step decode 15 verify "${problem[@]}" --parallel decode --seqlen 1,4 --seqlen-k 3000 --causal bottom-right --repeat 3
	local test=${VKATTN_RANKS_TESTS-}/attention.parallel.test log=$OUT/ranks-process.txt begin=$SECONDS status
	if (($(left) > 5)) && [[ -n ${VKATTN_RANKS_TESTS-} && -x $test ]]; then
		(cd attention/parallel && VKATTN_TEST_LEVEL=all timeout --kill-after 5 "$(left)" "$test" -test.v -test.run OnADevice) >"$log" 2>&1
		status=$?
		((status)) && rc=1
		{
			printf -- '- one process: exit %d after %d s, %d tests pass\n' "$status" $((SECONDS - begin)) "$(grep -c -- '--- PASS' "$log")"
			grep -E -A 8 -- '--- (FAIL|SKIP)' "$log" | head -n 40 | cut -c 1-400 | sed 's/^/    /'
		} | tee -a "$OUT/ranks.md"
	fi
}

if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=timestamp,index,memory.used,temperature.gpu --format=csv,noheader -l 1 >"$OUT/ranks-memory.csv" 2>/dev/null &
	sampler=$!
	trap 'kill "$sampler" 2>/dev/null' EXIT
fi
case $what in
check | splits) "$what" ;;
*) if ((n < 3)); then two; else many; fi ;;
esac
if [[ -s $OUT/ranks-memory.csv ]]; then
	awk -F ', ' '{ gsub(/ MiB/, "", $3); if ($3 + 0 > most[$2]) most[$2] = $3 + 0 } END { for (i in most) printf "- GPU %s: at most %d MiB in use\n", i, most[i] }' \
		"$OUT/ranks-memory.csv" | sort | tee -a "$OUT/ranks.md"
fi
for table in "$OUT"/ranks-*.md; do
	[[ -r $table ]] || continue
	printf '\n## %s\n\n' "$(basename "$table" .md)"
	cat "$table"
done >>"$OUT/ranks.md"
cat "$OUT/ranks.md"
exit "$rc"
