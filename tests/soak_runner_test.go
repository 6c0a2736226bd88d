package tests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// A process that dies, hangs or cannot be started is a failure that names its unfinished
// compositions, and the others run to the end of the time.
func TestSoakOutlivesItsProcesses(t *testing.T) {
	if name := driverUnderTest().name; name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
	begun := `{"event":"start","process":%[1]d,"at":%[2]d,"case":"scalar/f16/int8/77/0"}`
	done := `{"event":"done","process":%[1]d,"at":%[2]d,"case":"scalar/f16/int8/77/3","rows":5}`
	const hangs = "exec sleep 10000"
	ended := `{"event":"end","process":%[1]d,"at":%[2]d,"case":"scalar/f16/int8/77/0"}`
	for _, x := range []struct {
		name    string
		lines   []string
		shell   string // what a process does after it has written the lines
		class   string // of the failures; "": there are none
		says    []string
		atLeast int // failures
		left    int // unfinished at the end
	}{
		{"dies at its first case", []string{begun}, "echo 'fatal error: gone'; kill -9 $$", "dead process",
			[]string{"scalar/f16/int8/77/0", "signal: killed", "fatal error: gone", soakCaseEnv}, 2, 0},
		{"dies after a case", []string{begun, done}, "exit 3", "dead process", []string{"scalar/f16/int8/77/3", "after this case", "exit status 3"}, 2, 0},
		{"dies between compositions", []string{begun, done, ended}, "exit 4", "dead process", []string{"no composition", "exit status 4"}, 2, 0},
		{"hangs", []string{begun}, hangs, "stuck", []string{"scalar/f16/int8/77/0", "no news for 1s"}, 1, 0},
		{"is busy at the end", []string{begun, done, ended, begun}, hangs, "", nil, 0, 1},
		{"finishes", []string{begun, done, ended}, "exit 0", "", nil, 0, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			journal, err := os.Create(filepath.Join(dir, "soak.jsonl"))
			require.NoError(t, err)
			now := time.Now()
			k := &soakRunner{dir: dir, journal: journal, begin: now, until: now.Add(5 * time.Second), stuck: time.Second}
			if x.class != "stuck" {
				k.stuck = time.Minute
			}
			var last *soakChild
			k.command = func(c *soakChild) *exec.Cmd {
				last = c
				script := ""
				for _, line := range x.lines {
					script += fmt.Sprintf("echo '"+line+"' >>"+journal.Name()+"\n", c.n, now.UnixMilli())
				}
				return exec.Command("/bin/sh", "-c", script+x.shell)
			}
			k.tick = func() time.Time { // a second later each process has done what it does
				require.Eventually(t, func() bool {
					if k.until.Sub(now) < 2*time.Second { // no process begins
						return true
					}
					if x.shell != hangs {
						return len(last.exited) > 0
					}
					text, err := os.ReadFile(journal.Name())
					return err == nil && strings.Count(string(text), fmt.Sprintf(`"process":%d,`, last.n)) == len(x.lines)
				}, patience, time.Millisecond)
				now = now.Add(time.Second)
				return now
			}
			unfinished := k.run(1)
			require.NoError(t, journal.Close())
			records, err := readSoak(journal.Name())
			require.NoError(t, err)
			var b bytes.Buffer
			failures := describeSoak(&b, records, "heading", unfinished)
			require.GreaterOrEqual(t, len(failures), x.atLeast)
			require.Len(t, unfinished, x.left)
			if x.class == "" {
				require.Empty(t, failures)
				return
			}
			for _, f := range failures {
				require.Equal(t, x.class, f.Class)
			}
			for _, want := range x.says {
				require.Contains(t, b.String(), want)
			}
		})
	}
}

// A failure's name parses to its case, which is drawn again unchanged.
func TestSoakCasesHaveNames(t *testing.T) {
	c := soakCase{Target: cases.On(attention.TierCoopMat2, attention.BF16), KV: attention.KVQ4_0, Seed: 123456789, Draw: 7}
	again, err := parseSoakCase(c.String())
	require.NoError(t, err)
	require.Equal(t, c, again)
	require.Equal(t, fmt.Sprintf("%+v", c.composition()), fmt.Sprintf("%+v", again.composition()))
	require.Equal(t, "coopmat2/bf16/q4_0", groupOf(c.String()))
	for _, bad := range []string{"", "scalar/f16", "scalar/f16/same/1/x", "scalar/f16/same/-1/0", "vulkan/f16/same/1/0", "scalar/f8/same/1/0", "scalar/f16/q9/1/0"} {
		_, err := parseSoakCase(bad)
		require.Error(t, err, bad)
	}
}
