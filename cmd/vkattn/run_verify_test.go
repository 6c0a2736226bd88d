package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
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
		stderr := spoiledRun(t, args, func(r *attention.BackwardArgs) { r.O.Host[1] = 0x44 })
		require.Regexp(t, `^vkattn: wrong result: .*batch 0, head 0, row 0.*\n$`, stderr)
		nothingWritten(t, dir)
	}
}

// spoiledRun computes on the CPU and requires that run --verify fails and prints no plan after what spoil did.
func spoiledRun(t *testing.T, args []string, spoil func(*attention.BackwardArgs)) (stderr string) {
	t.Helper()
	o, f := runFlags{paths: paths{}}, pflag.NewFlagSet("run", pflag.ContinueOnError)
	o.add(f)
	require.NoError(t, f.Parse(append(args[1:], "--verify")))
	require.NoError(t, o.optionFlags.read())
	in, err := openInputs(&o)
	require.NoError(t, err)
	defer in.close()
	op, err := attention.New(nil, in.config)
	require.NoError(t, err)
	p, err := in.load()
	require.NoError(t, err)
	require.NoError(t, p.compute(t.Context(), op, nil, p.args))
	spoil(&p.args)
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	require.Equal(t, exitFailure, a.exit(a.finish(t.Context(), nil, &o, p)))
	require.Empty(t, out.String())
	return errs.String()
}
