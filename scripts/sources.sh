#!/usr/bin/env bash
# Prints the tracked source by class: files and lines. Each file is in the first class that fits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git ls-files | awk '
function class(f) {
	if (f ~ /\.(spv|gz|npy|npz|png|cubin|f32|jsonl|csv|svg)$/ || f ~ /^docs\/results\//) return ""
	if (f ~ /(^|\/)testdata\// || f ~ /^tests\/golden\//) return "testdata"
	if (f ~ /_gen\.go$/ || f ~ /manifest\.json$/ || f ~ /\.ptx$/) return "generated"
	if (f ~ /_test\.(go|c|cc|h)$/ || f ~ /^tests\//) return "tests"
	if (f ~ /\/examples\//) return "examples"
	if (f ~ /^scripts\// || f ~ /^\.ci\// || f == "Makefile" || f ~ /\.(sh|py)$/) return "scripts"
	if (f ~ /\.(glsl|comp|cu)$/ || f ~ /^cudapath\/kernels\/.*\.h$/) return "kernels"
	if (f ~ /\.(go|c|cc|h)$/) return "product"
	if (f ~ /\.md$/) return "docs"
	return "other"
}
{
	c = class($0)
	if (c == "") next
	files[c]++
	while ((getline line < $0) > 0) lines[c]++
	close($0)
}
END {
	n = split("product tests testdata examples generated scripts kernels docs other", order, " ")
	printf "%-10s %6s %8s\n", "class", "files", "lines"
	for (i = 1; i <= n; i++) printf "%-10s %6d %8d\n", order[i], files[order[i]], lines[order[i]]
}'
