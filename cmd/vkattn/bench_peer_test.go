package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
)

// shellPeer is a peer in a dozen lines of shell: a good one, with a millisecond
// a run, or one that dies at a request.
func shellPeer(t *testing.T, name, diesAt string) string {
	script := filepath.Join(t.TempDir(), "peer.sh")
	text := fmt.Sprintf(`while read -r line; do
	id=$(printf %%s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
	op=$(printf %%s "$line" | sed 's/.*"op":"\([a-z]*\)".*/\1/')
	if [ "$op" = %q ]; then echo 'no more' >&2; exit 5; fi
	case $op in
	hello) echo "{\"id\":$id,\"name\":\"%s\",\"device\":\"a shell\",\"timer\":\"none\"}" ;;
	problem) echo "{\"id\":$id,\"status\":\"ok\",\"memory_bytes\":1}" ;;
	time)
		n=$(printf %%s "$line" | sed 's/.*"n":\([0-9]*\).*/\1/')
		ms=1; while [ "$n" -gt 1 ]; do ms=$ms,1; n=$((n - 1)); done
		echo "{\"id\":$id,\"ms\":[$ms]}" ;;
	*) echo "{\"id\":$id}" ;;
	esac
done
`, diesAt, name)
	require.NoError(t, os.WriteFile(script, []byte(text), 0o600))
	return "sh " + script
}

func TestBenchBesidePeers(t *testing.T) {
	onceOnly(t)
	code, stdout, stderr := call(tiny("--device", "cpu", "-o", "json", "--seqlen", "33,34",
		"--peer", shellPeer(t, "same", ""), "--peer", shellPeer(t, "same", ""), "--peer", shellPeer(t, "cpu", "time"))...)
	require.Equal(t, exitOK, code, "a peer that fails is not this program's failure: %s", stderr)
	var doc struct {
		Run  bench.RunInfo
		Rows []bench.Row
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Len(t, doc.Rows, 8)
	require.Len(t, doc.Run.Peers, 3)
	for i, want := range []string{"cpu", "same", "same.2", "cpu.2"} {
		require.Equal(t, want, doc.Rows[i].Tier, "names are unique")
		if i > 0 {
			require.Equal(t, want, doc.Run.Peers[i-1].Name)
		}
	}
	require.Equal(t, bench.OK, doc.Rows[0].Status)
	require.InDelta(t, 1/doc.Rows[0].Ms.Median, doc.Rows[0].Versus["same"], 1e-9)
	require.Equal(t, []float64{1, 1}, doc.Rows[1].Samples)
	require.Equal(t, "a shell", doc.Rows[1].Device)
	require.Equal(t, bench.Broken, doc.Rows[3].Status)
	require.Equal(t, `ended at "time" (exit status 5): no more`, doc.Rows[3].Reason)
	require.Equal(t, bench.Broken, doc.Rows[7].Status)
	require.Equal(t, "vkattn: 2 of 2 rows of peer cpu.2 failed: ended at \"time\" (exit status 5): no more\n8 rows, seed 9\n", stderr)
}

// A command that speaks another language, or none, is a mistake in the flag.
func TestBenchRefusesACommandThatIsNoPeer(t *testing.T) {
	for command, says := range map[string]string{
		"no-such-command": `--peer no-such-command: ended at "hello" (exit status 127): `,
		"exit 3":          `--peer exit 3: ended at "hello" (exit status 3); `,
		"true":            `--peer true: ended at "hello" (exit status 0); `,
		"echo hi":         `--peer echo hi: answered nonsense to "hello": "hi"; `,
		"echo a b; cat":   `answered nonsense to "hello": `,
	} {
		refused(t, exitInput, says, tiny("--device", "cpu", "--peer", shellPeer(t, "same", ""), "--peer", command)...)
	}
	refused(t, exitInput, `a peer is, for example, "python3 scripts/peer_torch.py flash"; others are cudnn, efficient, math, copy and, for --device cpu, cpu`, tiny("--device", "cpu", "--peer", "flash")...)
}

func TestBenchNamesThePeersThatThereAre(t *testing.T) {
	text := sourceFile(t, "scripts/peer_torch.py")
	_, table, _ := strings.Cut(string(text), "BACKENDS = {")
	table, _, _ = strings.Cut(table, "}")
	backends := []string{"copy"}
	for _, m := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(table, -1) {
		backends = append(backends, m[1])
	}
	require.ElementsMatch(t, regexp.MustCompile(`\b[a-z]+\b`).FindAllString(strings.Join(backends, " "), -1), append(slices.Clone(torchBackends), "cpu"))
}

// Any other failure of a peer costs its own rows.
func TestBenchWithoutThePeerItWasGiven(t *testing.T) {
	stdout, stderr := succeeds(t, tiny("--device", "cpu", "--peer", "kill -9 $$")...)
	require.Contains(t, stdout, "| x kill -9 $$ |")
	require.True(t, strings.HasPrefix(stderr, "vkattn: peer kill -9 $$: ended at \"hello\" (signal: killed)\n"), stderr)

	stdout, stderr = succeeds(t, tiny("--device", "cpu", "--peer", `read -r line; echo '{"id": 1, "name": "gpu-only", "status": "unsupported", "reason": "it needs a GPU"}'; cat`)...)
	require.Contains(t, stdout, "\ngpu-only, f32 d8 B1 H2 S33: unsupported: it needs a GPU\n")
	require.Equal(t, "vkattn: peer gpu-only: it needs a GPU\n2 rows, seed 9\n", stderr)
}

// parsedPlan is the plan of flags that the command line does not have.
func parsedPlan(o benchFlags) (*benchPlan, error) {
	o.changed = func(string) bool { return false }
	return o.plan(bench.Formats)
}

// planned are the problems of flags.
func planned(t *testing.T, o benchFlags) []bench.Problem {
	t.Helper()
	o.format = "md"
	p, err := parsedPlan(o)
	require.NoError(t, err)
	list, err := p.problems(bench.Sweep{})
	require.NoError(t, err)
	return list
}

func TestBenchSuites(t *testing.T) {
	require.Len(t, planned(t, benchFlags{suite: "forward"}), 20)
	require.Len(t, planned(t, benchFlags{suite: "forward,dims"}), 30)
	require.Len(t, planned(t, benchFlags{suite: "gqa,ablation"}), 20, "what two suites share is run once")
	require.Len(t, planned(t, benchFlags{suite: "forward", lists: axisTexts{"dtype": "f16,bf16"}}), 40)
	require.Len(t, planned(t, benchFlags{suite: "forward", lists: axisTexts{"headdim": "64", "seqlen": "1024-4096*2", "causal": "top-left"}}), 3)
	refused(t, exitInput, "select no problem", "bench", "--suite", "forward", "--headdim", "96")
}

func TestBenchSavesWhatItPrints(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	md, lines := filepath.Join(dir, "rows.md"), filepath.Join(dir, "rows.jsonl")
	stdout, _ := succeeds(t, tiny("--device", "cpu", "--save", md, "--save", lines, "--seqlen", "33,34")...)
	text := readFile(t, md)
	require.Equal(t, stdout, string(text))
	text = readFile(t, lines)
	require.Equal(t, 2, strings.Count(string(text), "\n"))
	refused(t, exitInput, "ends in none of", tiny("--device", "cpu", "--save", "rows.txt")...)
	refused(t, exitInput, "--save", tiny("--device", "cpu", "--save", filepath.Join(dir, "none", "rows.md"))...)
}

func TestBenchExperimentsOnTheCPU(t *testing.T) {
	code, stdout, _ := call(tiny("--device", "cpu", "--variant", "all", "-o", "jsonl")...)
	require.Equal(t, exitUnsupported, code)
	require.Equal(t, 8, strings.Count(stdout, "\n"))
	require.Contains(t, stdout, `"variant":"v8"`)
	stdout, _ = succeeds(t, tiny("--device", "cpu", "--ablate", "none,softmax")...)
	require.Regexp(t, `\| cpu without softmax .*\| unsupported \|`, stdout)
	require.Contains(t, stdout, "\nAn ABLATION leaves out a part of the work")
}

func TestAnAblationIsNotVerified(t *testing.T) {
	driver(t)
	stdout, _ := succeeds(t, tiny("--tier", "scalar", "--ablate", "none,softmax", "-o", "json")...)
	rows := documentRows[bench.Row](t, stdout)
	require.Equal(t, bench.OK, rows[0].Status, rows[0].Reason)
	require.NotZero(t, rows[0].Checked.Rows)
	require.Contains(t, []bench.Status{bench.Ablated, bench.Unsupported}, rows[1].Status, rows[1].Reason)
	require.Zero(t, rows[1].Checked.Rows)
	require.Zero(t, rows[1].TFLOPs)
}

// TestTorchPeer runs the script as far as this machine lets it: without a GPU,
// or without PyTorch, it must say so.
func TestTorchPeer(t *testing.T) {
	onceOnly(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	script, err := filepath.Abs("../../scripts/peer_torch.py")
	require.NoError(t, err)
	for _, backend := range []string{"flash", "cudnn", "efficient", "math"} {
		stdout, _ := succeeds(t, tiny("--device", "cpu", "-o", "json", "--peer", fmt.Sprintf("'%s' '%s' %s", python, script, backend))...)
		rows := documentRows[bench.Row](t, stdout)
		require.Equal(t, backend, rows[1].Tier)
		require.Contains(t, []bench.Status{bench.OK, bench.Unsupported}, rows[1].Status, rows[1].Reason)
	}
}

func TestBenchBaselines(t *testing.T) {
	for list, want := range map[string]int{"": 3, "none": 0, "copy": 1} {
		o := benchFlags{format: "md", suite: "decode", baselines: list}
		p, err := parsedPlan(o)
		require.NoError(t, err)
		require.Len(t, p.chosenBaselines(), want, "--against %q", list)
	}
}

func TestBenchPasses(t *testing.T) {
	require.Len(t, planned(t, benchFlags{suite: "forward", lists: axisTexts{"pass": "bwd,fwdbwd"}}), 40)
	models := planned(t, benchFlags{suite: "models"})
	require.Len(t, models, 9, "a suite has passes")
	require.Equal(t, attention.BF16, models[0].Config.DType, "and a storage type")
	require.Equal(t, []bench.Pass{bench.PassForward, bench.PassBackward, bench.PassBoth}, []bench.Pass{models[0].Pass, models[1].Pass, models[2].Pass})
	require.Len(t, planned(t, benchFlags{suite: "models", lists: axisTexts{"pass": "bwd", "dtype": "f16,f32"}}), 6)
	require.Len(t, planned(t, benchFlags{suite: "alone"}), 84)
	require.Len(t, planned(t, benchFlags{suite: "plain"}), 240)
	require.Len(t, planned(t, benchFlags{suite: "models", onePass: true}), 3, "vkattn tune times the forward pass")

	onceOnly(t)
	stdout, _ := succeeds(t, tiny("--device", "cpu", "--pass", "fwd,bwd", "-o", "json")...)
	rows := documentRows[bench.Row](t, stdout)
	require.Equal(t, []bench.Pass{bench.PassForward, bench.PassBackward}, []bench.Pass{rows[0].Pass, rows[1].Pass})
	require.Greater(t, rows[1].Memory, rows[0].Memory)
	require.NotZero(t, rows[1].Checked.Keys)
	code, _, stderr := call(tiny("--device", "cpu", "--pass", "bwd", "--page-size", "16")...)
	require.Equal(t, exitUnsupported, code)
	require.Contains(t, stderr, "paged and quantized K and V have no gradients")
}
