#!/usr/bin/env bash
# race.sh [entry...] runs suites of "vkattn bench" with PyTorch's attention as a peer, in
# the same rounds on the same GPU. Without entries it runs the first four:
#
#   forward   lengths 1024 to 16384 at head dims 64 and 128
#   dims      the other head dims
#   gqa       grouped heads, and lengths that differ
#   f32       float32: tiers coopmat2, coopmat and scalar versus the efficient backend
#   cuda      CUDA kernels of this program and coopmat2, at head dims 64, 128 and 256
#   tiers     tiers auto, coopmat2, cubin and cuda on the suites small, forward, dims, gqa and
#             decode: what the table of internal/plan/fastest.go is made from and judged by
#   ladder    the speed of each step of the kernel's development; tunes first
#   ablation  the cost of the parts of the work
#   decode    one row over long K and V, contiguous, paged, quantized and sparse,
#             versus copies of as many bytes
#   cpu       the CPU tier versus PyTorch's flash kernel for the CPU, both with
#             GOMAXPROCS threads, or as many as there are CPUs; on two cores:
#             GOMAXPROCS=2 taskset -c 0,1 scripts/race.sh cpu
#   backward  gradients of the problems of forward, versus PyTorch's
#   alone     attention alone, forward and backward, versus plain attention (PyTorch's
#             math backend, which holds all scores; out of memory is a row)
#   plain     the same for one causal head, in bf16 and f32, lengths 128 to 65536
#   models    attention of all layers of three transformers, forward and backward
#   serving   grouped prefill and decode, paged and sparse, versus reference
#             implementations of this program
#
# Each entry is a process, so that a lost device ends only one entry. race.sh needs the
# built command, python3 and PyTorch. It writes two files per entry to $OUT (default
# ./out): the table ENTRY.md, and ENTRY.jsonl with samples, clocks and power of each row,
# written as rows finish. An entry replaces its own files and leaves other files alone.
#
#   VKATTN             the command (default: build/vkattn)
#   PYTHON             the interpreter that has PyTorch (default: python3)
#   VKATTN_RACE_PEERS  backends of PyTorch (default: flash cudnn)
#   VKATTN_RACE_TIERS  (default: coopmat2,coopmat)
#   VKATTN_RACE_ALL_TIERS  of tiers (default: auto,coopmat2,cubin,cuda)
#   VKATTN_RACE_DECODE_TIERS  of decode and serving (default: auto)
#   VKATTN_RACE_BACKWARD_TIERS  of backward, alone, plain and models (default: auto)
#   VKATTN_RACE_ARGS   further arguments of every entry, such as --dtype f16,bf16
#   VKATTN_RACE_LIMIT  seconds an entry may take (default: 240; tiers 465; decode,
#                      backward, alone and plain 480)
set -uo pipefail

entries=("$@")
((${#entries[@]})) || entries=(forward dims gqa f32)
for entry in "${entries[@]}"; do
	case $entry in
	forward | dims | gqa | f32 | cuda | tiers | ladder | ablation | decode | serving | cpu | backward | alone | plain | models) ;;
	*)
		echo "race: no entry $entry" >&2
		sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
		exit 2
		;;
	esac
done
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
VKATTN=$(realpath -- "${VKATTN:-$(dirname "${BASH_SOURCE[0]}")/../build/vkattn}")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [[ ! -x $VKATTN ]]; then
	echo "race: $VKATTN is not there; make race builds it" >&2
	exit 1
fi
tiers=${VKATTN_RACE_TIERS:-coopmat2,coopmat}
read -ra backends <<<"${VKATTN_RACE_PEERS:-flash cudnn}"

race() { # <entry>
	local entry=$1 args peers=("${backends[@]}") peer limit=240
	case $entry in
	forward | dims | gqa) args=(--suite "$entry" --tier "$tiers") ;;
	f32)
		args=(--dtype f32 --tier "$tiers,scalar" --batch-size 4 --nheads 8 --seqlen 4096 --headdim "64,128" --causal "none,top-left")
		peers=(efficient)
		;;
	cuda) args=(--suite cuda --tier "cuda,${tiers%%,*}" --cuda-kernel "fa2,fa3") ;;
	tiers)
		# Rows of small problems need no long warm-up each: the card is never idle for long.
		args=(--suite "small,forward,dims,gqa,decode" --tier "${VKATTN_RACE_ALL_TIERS:-auto,coopmat2,cubin,cuda}"
			--against none --warmup 100ms -r 15 --timeout 5s)
		peers=(cudnn)
		limit=465
		;;
	ladder)
		# From v6 on the tile is what the tuner finds.
		timeout 90 "$VKATTN" tune --suite ladder --batch-size 8 --tier "${tiers%%,*}" >"$OUT/ladder-tune.txt" 2>&1 || cat "$OUT/ladder-tune.txt" >&2
		args=(--suite ladder --batch-size 8 --tier "${tiers%%,*}" --variant all)
		;;
	decode)
		args=(--suite decode --tier "${VKATTN_RACE_DECODE_TIERS:-auto}")
		peers+=(copy)
		limit=480
		;;
	backward)
		args=(--suite forward --pass "bwd,fwdbwd" --tier "${VKATTN_RACE_BACKWARD_TIERS:-auto}")
		limit=480
		;;
	alone | plain)
		args=(--suite "$entry" --tier "${VKATTN_RACE_BACKWARD_TIERS:-auto}")
		peers=(math)
		limit=480
		;;
	models) args=(--suite models --tier "${VKATTN_RACE_BACKWARD_TIERS:-auto}") ;;
	serving)
		args=(--suite serving --tier "${VKATTN_RACE_DECODE_TIERS:-auto}")
		peers=()
		;;
	cpu)
		args=(--device cpu --dtype "f32,f16,bf16" --batch-size 1 --nheads 8 --seqlen "512,1024,4096" --headdim "64,128" --causal "none,top-left")
		peers=(cpu)
		;;
	ablation) args=(--suite ablation --tier "${tiers%%,*}" --ablate "none,softmax,barrier,load") ;;
	esac
	for peer in "${peers[@]}"; do
		args+=(--peer "${PYTHON:-python3} scripts/peer_torch.py $peer")
	done
	# jsonl prints each row at once, so that finished rows survive a stop.
	# shellcheck disable=SC2086 # the arguments are words
	timeout --signal INT --kill-after 15 "${VKATTN_RACE_LIMIT:-$limit}" \
		"$VKATTN" bench "${args[@]}" ${VKATTN_RACE_ARGS-} -o jsonl --save "$OUT/$entry.md" >"$OUT/$entry.jsonl"
}

rc=0
for entry in "${entries[@]}"; do
	start=$SECONDS
	rm -f "$OUT/$entry".{md,jsonl}
	race "$entry"
	status=$?
	((status)) && rc=1
	printf '== %s: exit %d after %d s\n' "$entry" "$status" $((SECONDS - start))
	if [[ -r $OUT/$entry.md ]]; then
		[[ $entry == decode ]] && cat scripts/lib/ggml-decode.txt >>"$OUT/$entry.md"
		cat "$OUT/$entry.md"
	fi
done
exit "$rc"
