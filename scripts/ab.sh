#!/usr/bin/env bash
# ab.sh OLD NEW [suite...] compares two builds of the command on one machine: rounds in
# which both run the same suites with the same seed, in alternating order. Default suites:
# forward and decode. Entry forward also has calls that return LSE, at length 4096 and head
# dims 64, 96 and 128, if both builds have bench --lse. It prints for each row the median time of both and their ratio, then
# the geometric mean and the worst ratio of each suite, and exits with 1 if a geometric mean
# is over VKATTN_AB_MEAN (1.005) or a row over VKATTN_AB_ROW (1.02).
#
#   OUT                   folder of the raw rows, jsonl, one file per suite, build and round
#                         (default: ./out)
#   VKATTN_AB_ROUNDS      rounds (default: 4)
#   VKATTN_AB_TIERS       tiers (default: coopmat2)
#   VKATTN_AB_ARGS        further arguments of bench, such as "-r 15 --dtype f16"
#   VKATTN_AB_OLD_ARGS    those of OLD alone, such as "--against none", where flags differ
#   VKATTN_AB_NEW_ARGS    those of NEW alone
#   VKATTN_AB_OLD_SUITES  names of the same suites in OLD, where they differ
set -uo pipefail

if (($# < 2)); then
	sed -n '2,/^set -uo/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
fi
old=$(realpath -- "$1") new=$(realpath -- "$2")
shift 2
suites=("$@")
((${#suites[@]})) || suites=(forward decode)
read -ra old_suites <<<"${VKATTN_AB_OLD_SUITES:-${suites[*]}}"
read -ra args <<<"${VKATTN_AB_ARGS:-}"
read -ra old_args <<<"${VKATTN_AB_OLD_ARGS:-}"
read -ra new_args <<<"${VKATTN_AB_NEW_ARGS:-}"
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" || exit 1

with_lse=yes
for binary in "$old" "$new"; do
	if [[ $("$binary" bench --help) != *--lse* ]]; then
		echo "ab: no rows with LSE: $binary has no bench --lse" >&2
		with_lse=
	fi
done

run() { # <name> <binary> <suite> <index> <round>
	local -n own=$1_args
	local file=$OUT/ab-${suites[$4]}-$1-$5
	local more=(--tier "${VKATTN_AB_TIERS:-coopmat2}" --seed 1 "${args[@]}" "${own[@]}" -o jsonl)
	"$2" bench --suite "$3" "${more[@]}" >"$file.jsonl" 2>"$file.log"
	if [[ ${suites[$4]} == forward && $with_lse ]]; then
		"$2" bench --suite forward,dims --seqlen 4096 --headdim 64,96,128 --lse "${more[@]}" >>"$file.jsonl" 2>>"$file.log"
	fi
}
for ((round = 1; round <= ${VKATTN_AB_ROUNDS:-4}; round++)); do
	for i in "${!suites[@]}"; do
		if ((round % 2)); then
			run old "$old" "${old_suites[i]}" "$i" "$round"
			run new "$new" "${suites[i]}" "$i" "$round"
		else
			run new "$new" "${suites[i]}" "$i" "$round"
			run old "$old" "${old_suites[i]}" "$i" "$round"
		fi
	done
done

python3 - "$OUT" "${suites[@]}" <<'PYTHON'
import glob, json, math, os, statistics, sys

out, suites = sys.argv[1], sys.argv[2:]
mean_limit = float(os.environ.get("VKATTN_AB_MEAN", "1.005"))
row_limit = float(os.environ.get("VKATTN_AB_ROW", "1.02"))
# The fields that say which row it is, and their names in older builds.
fields = ["tier", "kernel", "variant", "ablation", "batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "headdim", "headdim_v",
          "causal", "dtype", "kv_dtype", "options", "lse"]
older = {"features": "options", "kept_ratio": "sparse_ratio", "form": "baseline"}

def renamed(x):
    return {older.get(k, k): renamed(v) for k, v in x.items()} if isinstance(x, dict) else x

def rows(suite, build):
    samples = {}
    for path in sorted(glob.glob(f"{out}/ab-{suite}-{build}-*.jsonl")):
        for line in open(path):
            row = renamed(json.loads(line))
            if row.get("status") != "ok" or "samples" not in row or row.get("baseline"):
                continue
            key = json.dumps({k: row[k] for k in fields if k in row})
            samples.setdefault(key, []).append(statistics.median(row["samples"]))
    return {k: statistics.median(v) for k, v in samples.items()}

failed = False
for suite in suites:
    old, new = rows(suite, "old"), rows(suite, "new")
    only = sorted(set(old) ^ set(new))
    for key in only:
        print(f"{suite}: in one build only: {key}")
    ratios = []
    print(f"\n| {suite} | old ms | new ms | new / old |\n|---|---:|---:|---:|")
    for key in old:
        if key in new:
            ratio = new[key] / old[key]
            ratios.append(ratio)
            name = " ".join(f"{k}={v}" for k, v in json.loads(key).items())
            print(f"| {name} | {old[key]:.4f} | {new[key]:.4f} | {ratio:.4f} |")
    if not ratios:
        print(f"{suite}: no row in both")
        failed = True
        continue
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\n{suite}: {len(ratios)} rows, geometric mean {mean:.4f} (limit {mean_limit}), worst {max(ratios):.4f} (limit {row_limit})")
    failed |= mean > mean_limit or max(ratios) > row_limit or bool(only)
sys.exit(failed)
PYTHON
