package attention_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// repeated is a call whose Q, K and V are one row each, repeated by strides of 0. It may
// have any shape, and each tensor takes 32 bytes.
func repeated(s attention.Shape) (attention.Config, attention.Args) {
	t := attention.Tensor{Host: make([]byte, 32)}
	if s.Hq > 1 || s.B > 1 { // not all of them may be 0: that is the default
		t.Strides.Seq = 8
	} else {
		t.Strides.Head = 8
	}
	if s.Sq > 1 && s.Hq > 1 {
		t.Strides.Seq, t.Host = 8, make([]byte, 32*s.Sq)
	}
	return attention.Config{DType: attention.F32, HeadDim: 8}, attention.Args{Shape: s, Q: t, K: t, V: t}
}

func refusedForMemory(t *testing.T, f func() error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)
	require.Regexp(t, `needs (over )?[\d.]+ [KMGTPE]?i?B of host memory, [\d.]+ [KMGTPE]?i?B (more than )?are available`, err.Error())
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

// Outputs, lists and scores have the size of the shape, however small the tensors.
func TestWhatDoesNotFitTheHostsMemoryIsRefused(t *testing.T) {
	t.Setenv(hostmem.Variable, "256MiB")
	row := []attention.Rows{{B: 0, H: 0, Rows: []int{0}}}
	for name, s := range map[string]attention.Shape{
		"batches":       {B: 1 << 30, Hq: 1, Sq: 1, Sk: 1},
		"heads":         {B: 1, Hq: 1 << 30, Hkv: 1, Sq: 1, Sk: 1},
		"all at 2^62":   {B: 1 << 30, Hq: 1<<31 - 2, Hkv: 1, Sq: 2, Sk: 1},
		"rows":          {B: 1, Hq: 1, Sq: 1 << 28, Sk: 1},
		"keys of a row": {B: 1, Hq: 1, Sq: 1, Sk: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := repeated(s)
			refusedForMemory(t, func() error {
				_, _, err := attention.Reference(cfg, a)
				return err
			})
			if s.Sk > 1 {
				refusedForMemory(t, func() error {
					_, _, err := attention.ReferenceSample(cfg, a, row)
					return err
				})
				refusedForMemory(t, func() error {
					_, _, err := oracle.Low(problem.Config(cfg), a, row)
					return err
				})
				refusedForMemory(t, func() error {
					_, _, err := oracle.Noise(problem.Config(cfg), a, row)
					return err
				})
				cfg.Softcap = 3
				refusedForMemory(t, func() error {
					_, _, err := attention.ReferenceSample(cfg, a, row)
					return err
				})
			}
			if s.B > 1 {
				require.Nil(t, attention.AllRows(s))
				refusedForMemory(t, func() error {
					_, err := tensors.Sequences(a)
					return err
				})
			}
		})
	}
}

// The CPU tier needs memory for tiles of keys only, however many keys a row attends to.
func TestForwardOnTheCPUTakesMemoryForTilesAlone(t *testing.T) {
	cfg, a := repeated(attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1 << 20})
	cfg.Softcap = 3
	a.O.Host = make([]byte, 32)
	op := testdevices.Op(t, nil, cfg)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, op.Forward(nil, a))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(a.Sk)*4, "a word for each key")
}
