package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Packed files without rows, packed K and V without keys, pools without pages and calls without
// sequences are inputs: O and the gradients are 0.
func TestRunOfEmptyPools(t *testing.T) {
	zeros := func(shape ...int) []byte { return npyZeros("<f2", 2, shape...) }
	none, bound := npyInts([]int{0}), npyInts([]int{1}, 0)
	noTable := npyInts([]int{0, 1})
	for name, x := range map[string]struct {
		files map[string][]byte
		shape []int    // of O and dQ
		more  []string // flags
	}{
		"rows": {map[string][]byte{"q": zeros(0, 4, 8), "do": zeros(0, 4, 8), "cu-seqlens-q": npyInts([]int{3}, 0, 0, 0),
			"k": zeros(2, 2, 6, 8), "v": zeros(2, 2, 6, 8)}, []int{0, 4, 8}, []string{"--dq", "--dk"}},
		"keys": {map[string][]byte{"q": zeros(2, 4, 5, 8), "do": zeros(2, 4, 5, 8), "cu-seqlens-k": npyInts([]int{3}, 0, 0, 0),
			"k": zeros(0, 2, 8), "v": zeros(0, 2, 8)}, []int{2, 4, 5, 8}, []string{"--dq", "--dk"}},
		"pages": {map[string][]byte{"q": zeros(2, 4, 5, 8), "block-table": npyInts([]int{2, 1}, 0, 0), "seqused-k": npyInts([]int{2}, 0, 0),
			"k": zeros(0, 6, 2, 8), "v": zeros(0, 6, 2, 8)}, []int{2, 4, 5, 8}, nil},
		"no sequences": {map[string][]byte{"q": zeros(0, 4, 8), "do": zeros(0, 4, 8), "cu-seqlens-q": bound,
			"k": zeros(0, 2, 8), "v": zeros(0, 2, 8), "cu-seqlens-k": bound}, []int{0, 4, 8}, []string{"--dq", "--dk"}},
		"no sequences, seqused": {map[string][]byte{"q": zeros(0, 4, 8), "do": zeros(0, 4, 8), "cu-seqlens-q": bound, "seqused-q": none,
			"k": zeros(0, 2, 8), "v": zeros(0, 2, 8), "cu-seqlens-k": bound, "seqused-k": none}, []int{0, 4, 8}, []string{"--dq", "--dk"}},
		"no sequences, rows of none": {map[string][]byte{"q": zeros(3, 4, 8), "do": zeros(3, 4, 8), "cu-seqlens-q": bound,
			"k": zeros(5, 2, 8), "v": zeros(5, 2, 8), "cu-seqlens-k": bound}, []int{3, 4, 8}, []string{"--dq", "--dk"}},
		"no sequences, bias": {map[string][]byte{"q": zeros(0, 4, 8), "do": zeros(0, 4, 8), "cu-seqlens-q": bound, "bias": zeros(1, 4, 1, 6),
			"k": zeros(0, 2, 6, 8), "v": zeros(0, 2, 6, 8)}, []int{0, 4, 8}, []string{"--dq", "--dk", "--dbias"}},
		"no sequences, pages": {map[string][]byte{"q": zeros(0, 4, 8), "cu-seqlens-q": bound, "block-table": noTable,
			"k": zeros(3, 6, 2, 8), "v": zeros(3, 6, 2, 8)}, []int{0, 4, 8}, nil},
		"no sequences, no pages": {map[string][]byte{"q": zeros(0, 4, 5, 8), "block-table": noTable, "seqused-k": none,
			"k": zeros(0, 6, 2, 8), "v": zeros(0, 6, 2, 8)}, []int{0, 4, 5, 8}, nil},
		"no sequences, padded Q": {map[string][]byte{"q": zeros(0, 4, 5, 8), "do": zeros(0, 4, 5, 8), "cu-seqlens-k": bound,
			"k": zeros(0, 2, 8), "v": zeros(0, 2, 8)}, []int{0, 4, 5, 8}, []string{"--dq", "--dk"}},
		"no sequences, padded": {map[string][]byte{"q": zeros(0, 4, 5, 8), "do": zeros(0, 4, 5, 8),
			"k": zeros(0, 2, 6, 8), "v": zeros(0, 2, 6, 8)}, []int{0, 4, 5, 8}, []string{"--dq", "--dk"}},
		"no sequences, seqused, padded": {map[string][]byte{"q": zeros(0, 4, 5, 8), "seqused-q": none, "seqused-k": none,
			"k": zeros(0, 2, 6, 8), "v": zeros(0, 2, 6, 8)}, []int{0, 4, 5, 8}, nil},
	} {
		for _, on := range []string{"cpu", "device"} {
			t.Run(name+"/"+on, func(t *testing.T) {
				where := []string{"--device", "cpu"}
				if on == "device" {
					driver(t)
					where = []string{"--tier", "scalar"}
				}
				dir := t.TempDir()
				at := func(name string) string { return filepath.Join(dir, name+".npy") }
				args := slices.Concat([]string{"run", "--verify", "--o", at("o")}, where)
				for flag, file := range x.files {
					require.NoError(t, os.WriteFile(at(flag), file, 0o644))
					args = append(args, "--"+flag, at(flag))
				}
				for _, flag := range x.more {
					args = append(args, flag, at(flag[2:]))
				}
				succeeds(t, args...)
				outputs := map[string][]int{"o": x.shape}
				if x.more != nil {
					outputs["dq"], outputs["dk"] = x.shape, nil
				}
				for name, want := range outputs {
					got, shape := readAny(t, at(name))
					if want != nil {
						require.Equal(t, want, shape, name)
					}
					for _, y := range got {
						require.Zero(t, y, name)
					}
				}
			})
		}
	}
}
