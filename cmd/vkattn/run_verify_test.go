package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestRunVerifies(t *testing.T) {
	for _, name := range []string{"pages, packed", "v-dim", "much at once", "int8"} {
		f := base(t)
		optionRuns[name](f)
		args := append([]string{"run", "--device", "cpu", "--verify", "--o", filepath.Join(f.dir, "o.npy"), "--lse", filepath.Join(f.dir, "lse.npy")}, f.flags...)
		code, stdout, stderr := call(args...)
		require.Equal(t, exitOK, code, "%s: %s", name, stderr)
		require.Contains(t, stdout, "\nverified: ok: ")
	}
	_, args := goodFiles(t)
	stdout, _ := succeeds(t, append(args, "--verify", "--json")...)
	require.Contains(t, stdout, `"verified": "ok: 40 of 40 rows`)
}

func TestRunWritesNothingThatIsWrong(t *testing.T) {
	for _, lse := range []bool{true, false} {
		dir, args := goodFiles(t)
		if !lse {
			args = without(args, "--lse")
		}
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, spoil: func(r *attention.BackwardArgs) { r.O.Host[1] = 0x44 }}
		code := a.exit(a.execute(t.Context(), append(args, "--verify")))
		require.Equal(t, exitFailure, code)
		require.Regexp(t, `^vkattn: wrong result: .*batch 0, head 0, row 0.*\n$`, errs.String())
		require.Empty(t, out.String())
		nothingWritten(t, dir)
	}
}
