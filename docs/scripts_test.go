package docs

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A script refuses a word that it does not know, with its usage text, before it does anything.
func TestScriptsRefuseUnknownWords(t *testing.T) {
	for _, c := range []struct{ script, says string }{
		{"ab.sh", "ab.sh OLD NEW [suite...] compares"},
		{"bench-proof.sh", "bench-proof.sh [compare|overhead|interrupt]..."},
		{"deps.sh", "deps.sh all"},
		{"gpu-run.sh", "gpu-run: no entry no-such-word\ngpu-run.sh [tests|"},
		{"module.sh", "module.sh PATH gives the module another path"},
		{"race.sh", "race: no entry no-such-word\nrace.sh [entry...] runs"},
		{"ranks.sh", "ranks: no entry no-such-word\nranks.sh [check|splits] runs"},
		{"release.sh", "release.sh build|test"},
		{"report-check.sh", "report-check.sh <vkattn> <folder>"},
		{"run-with", "run-with <runner> program [args...]"},
		{"test.sh", "test.sh: no part no-such-word\ntest.sh [--fetch] [part...] runs"},
	} {
		t.Run(c.script, func(t *testing.T) {
			t.Parallel()
			path, err := filepath.Abs("../scripts/" + c.script)
			require.NoError(t, err)
			run := exec.Command("bash", path, "no-such-word")
			run.Dir = t.TempDir()
			var stderr bytes.Buffer
			run.Stderr = &stderr
			stdout, err := run.Output()
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "%v", err)
			require.Equal(t, 2, exit.ExitCode(), stderr.String())
			require.Empty(t, stdout)
			require.Contains(t, stderr.String(), c.says)
			left, err := filepath.Glob(run.Dir + "/*")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
