#!/usr/bin/env bash
# report-check.sh <vkattn> <folder>
#
# Makes a report of committed results and opens it in headless Chromium ($CHROMIUM): light,
# dark and as wide as a phone. The screenshots are for a person to look at. The script itself
# checks that the page is no wider than the window, that 1280 pixels show the speed of a row, that a click
# sorts a table by number, that the filter hides rows, and that the page asks for no other file.
set -euo pipefail

if (($# != 2)); then
	sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
	exit 2
fi
vkattn=$1 out=$2
results=docs/results
mkdir -p "$out"
"$vkattn" report "$results"/2026-11-20-h200/{cuda-race-suite.jsonl.gz,ladder.jsonl} "$results/2026-11-22-h200/decode.jsonl.gz" \
	"$results"/2026-11-25-h200/ceilings.jsonl.gz --title 'vkattn on an NVIDIA H200' -o "$out/report.html"

browser() { "${CHROMIUM:?}" --no-sandbox --headless --disable-gpu --hide-scrollbars "$@" 2>>"$out/chromium.log"; }
page=file://$(realpath "$out/report.html")
: >"$out/chromium.log"
browser --window-size=1280,2400 --screenshot="$out/light.png" "$page"
browser --window-size=1280,2400 --blink-settings=preferredColorScheme=0 --screenshot="$out/dark.png" "$page"
# frame <file> <width> is a page that shows a file as wide as a phone, which no window is, and takes its title.
frame() {
	printf '<body style="margin:0"><script>onmessage = e => document.title = e.data</script>' >"$out/frame.html"
	printf '<iframe src="%s" style="width:%dpx;height:2400px;border:0"></iframe>' "$1" "$2" >>"$out/frame.html"
}
frame report.html 400
browser --window-size=500,2400 --screenshot="$out/phone.png" "file://$(realpath "$out/frame.html")"
browser --window-size=1260,1365 --screenshot="$out/picture.png" "$page" # of docs/command.md

# The page of the check is the report with a script that uses it and leaves the outcome in
# its title.
sed '$d' "$out/report.html" >"$out/check.html"
cat >>"$out/check.html" <<'PAGE'
<script>
	const wrong = [];
	const heads = [...document.querySelectorAll("#file-1 th")];
	const column = heads.findIndex(h => h.textContent === "TFLOP/s");
	const body = document.querySelector("#file-1 tbody");
	const values = () => [...body.rows].map(r => Number(r.cells[column].dataset.sort));
	for (const sign of [1, -1]) {
		heads[column].firstChild.click();
		if (!values().every((v, i, all) => i === 0 || sign * (v - all[i - 1]) >= 0)) wrong.push("sorting " + sign);
	}
	const input = document.querySelector("#file-1 input");
	input.value = "fa3";
	input.dispatchEvent(new Event("input"));
	const shown = [...body.rows].filter(r => !r.hidden);
	if (shown.length === 0 || !shown.every(r => r.textContent.includes("fa3"))) wrong.push("filter");
	if (window.innerWidth >= 1280 && heads[column].getBoundingClientRect().right > window.innerWidth) wrong.push("speed");
	if (document.documentElement.scrollWidth > window.innerWidth) wrong.push("wider than the window");
	if (performance.getEntriesByType("resource").length > 0) wrong.push("asks for other files");
	parent.postMessage(wrong.length ? "WRONG: " + wrong.join(", ") : "report works", "*");
</script>
PAGE
for width in 1280 400; do
	frame check.html $width
	title=$(browser --window-size=1400,1000 --virtual-time-budget=5000 --dump-dom "file://$(realpath "$out/frame.html")" |
		grep -o '<title>[^<]*' | head -1)
	printf '%s pixels: %s\n' "$width" "${title#<title>}"
	[[ $title == '<title>report works' ]] || exit 1
done
rm -f "$out/check.html" "$out/frame.html"
printf 'screenshots: %s\n' "$out"/*.png
