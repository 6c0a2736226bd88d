package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// npyInts is a file of int32.
func npyInts(shape []int, v ...int32) []byte {
	return npyBytes("<i4", false, shape, littleEndian(v))
}

// npyZeros is a file of zeros of any type.
func npyZeros(descr string, size int, shape ...int) []byte {
	for _, n := range shape {
		size *= n
	}
	return npyBytes(descr, false, shape, make([]byte, size))
}

// The good files are 2 sequences of 5 rows and 6 keys, 4 query heads over 2, head
// dims 8 and 3.
func TestBadOptionsAreBadInput(t *testing.T) {
	type files map[string][]byte
	packed := files{"q": zeros(9, 4, 8), "cu-seqlens-q": npyInts([]int{3}, 0, 4, 9)}
	pages := func(more files) files {
		all := files{"k": zeros(5, 4, 2, 8), "v": zeros(5, 4, 2, 3), "block-table": npyInts([]int{2, 2}, 0, 1, 2, 3)}
		for name, f := range more {
			all[name] = f
		}
		return all
	}
	int8s := files{"k": npyZeros("|i1", 1, 2, 2, 6, 8), "v": npyZeros("|i1", 1, 2, 2, 6, 3),
		"k-scale": npyZeros("<f4", 4, 2, 2, 6), "v-scale": npyZeros("<f4", 4, 2, 2, 6)}
	but := func(base files, name string, file []byte) files {
		all := files{}
		for n, f := range base {
			all[n] = f
		}
		all[name] = file
		if file == nil {
			delete(all, name)
		}
		return all
	}
	for name, c := range map[string]struct {
		files files
		flags []string
		want  string
	}{
		"lengths of floats":             {files{"seqused-k": zeros(2)}, nil, `--seqused-k`},
		"floats are said to be":         {files{"seqused-k": zeros(2)}, nil, `"<f2" is not supported: int32 ('<i4') or int64 ('<i8') is needed`},
		"lengths of others":             {files{"seqused-k": npyInts([]int{3}, 1, 2, 3)}, nil, "--seqused-k: shape [3], want [2]"},
		"too long":                      {files{"seqused-k": npyInts([]int{2}, 6, 7)}, nil, "--seqused-k: length 7 of sequence 1 is not in 0 to 6"},
		"negative":                      {files{"seqused-q": npyInts([]int{2}, -1, 2)}, nil, "--seqused-q: length -1 of sequence 0 is not in 0 to 5"},
		"64 bits":                       {files{"seqused-q": npyBytes("<i8", false, []int{2}, []byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})}, nil, "4294967296 does not fit 32 bits"},
		"packed, rank 4":                {files{"cu-seqlens-q": npyInts([]int{3}, 0, 1, 2)}, nil, "q.npy: rank 4, want 3 (packed as [total, heads, dim])"},
		"not packed, rank 3":            {files{"q": zeros(9, 4, 8)}, nil, "q.npy: rank 3, want 4"},
		"bounds of none":                {but(packed, "cu-seqlens-q", npyInts([]int{0})), nil, "cu-seqlens-q.npy: shape [0], want [B+1]: one number at least"},
		"bounds in an empty file":       {but(packed, "cu-seqlens-q", []byte{}), nil, "cu-seqlens-q.npy: not a .npy file"},
		"bounds of one":                 {but(packed, "cu-seqlens-q", npyInts([]int{1}, 0)), nil, "K has 2 sequences, --cu-seqlens-q has 0"},
		"a table of no sequences":       {pages(files{"block-table": npyInts([]int{0, 2})}), nil, "--block-table has 0"},
		"bounds that fall":              {but(packed, "cu-seqlens-q", npyInts([]int{3}, 0, 5, 4)), nil, "entry 2 is 4 after 5: they must not decrease"},
		"bounds below 0":                {but(packed, "cu-seqlens-q", npyInts([]int{3}, -1, 5, 9)), nil, "entry 0 is -1"},
		"bounds past the end":           {but(packed, "cu-seqlens-q", npyInts([]int{3}, 0, 5, 10)), nil, "entry 2 is 10, but there are 9"},
		"bounds of more":                {but(packed, "cu-seqlens-q", npyInts([]int{4}, 0, 5, 9, 9)), nil, "K has 2 sequences, --cu-seqlens-q has 3"},
		"used more than packed":         {but(packed, "seqused-q", npyInts([]int{2}, 5, 5)), nil, "length 5 of sequence 0 is not in 0 to 4"},
		"keys packed, and pages":        {pages(files{"cu-seqlens-k": npyInts([]int{3}, 0, 1, 2)}), nil, "--block-table and --cu-seqlens-k exclude one another"},
		"pages without a table":         {nil, []string{"--page-size", "4"}, "--page-size needs --block-table"},
		"layout without a table":        {nil, []string{"--kv-layout", "nhd"}, "--kv-layout needs --block-table"},
		"no layout":                     {nil, []string{"--kv-layout", "dhn"}, "unknown layout"},
		"page size 0":                   {pages(nil), []string{"--page-size", "0"}, "--page-size 0: want a positive number"},
		"other page size":               {pages(nil), []string{"--page-size", "2"}, "K has pages of 4 keys (nhd), --page-size says 2"},
		"pages the other way":           {pages(nil), []string{"--kv-layout", "hnd", "--page-size", "4"}, "K has pages of 2 keys (hnd), --page-size says 4"},
		"table of rank 1":               {pages(files{"block-table": npyInts([]int{4}, 0, 1, 2, 3)}), nil, "--block-table: shape [4]"},
		"table of others":               {pages(files{"block-table": npyInts([]int{1, 2}, 0, 1)}), nil, "--block-table has 1 sequences, Q has 2"},
		"no such page":                  {pages(files{"block-table": npyInts([]int{2, 2}, 0, 1, 2, 5)}), nil, "entry 1 of sequence 1 is 5, not one of the 5 pages"},
		"more than its pages":           {pages(files{"seqused-k": npyInts([]int{2}, 8, 9)}), nil, "length 9 of sequence 1 is not in 0 to 8"},
		"pages of V":                    {pages(files{"v": zeros(4, 4, 2, 3)}), nil, "V has pages 4, K has 5"},
		"sparse tokens of others":       {files{"sparse-tokens": npyInts([]int{2, 1, 1}, 0, 0)}, nil, "--sparse-tokens: shape [2 1 1], want [2, 2, tokens of a list]"},
		"sparse tokens without offsets": {files{"sparse-tokens": npyInts([]int{2}, 0, 0)}, nil, "or [total] with --sparse-offsets"},
		"sparse tokens of other rows":   {files{"sparse-tokens": npyInts([]int{2, 4, 2, 1}, make([]int32, 16)...)}, nil, "--sparse-tokens: shape [2 4 2 1], want [2, 5, 2, tokens of a list]"},
		"no such token of a row":        {files{"sparse-tokens": npyInts([]int{2, 5, 2, 1}, append(make([]int32, 19), 6)...)}, nil, "token 6 of row 9, head 1 is not in -1 to 5"},
		"offsets without tokens":        {files{"sparse-offsets": npyInts([]int{5}, 0, 0, 0, 0, 0)}, nil, "--sparse-offsets needs --sparse-tokens"},
		"offsets of others":             {files{"sparse-tokens": npyInts([]int{2}, 0, 0), "sparse-offsets": npyInts([]int{2}, 0, 0)}, nil, "--sparse-offsets: shape [2], want [5]"},
		"offsets past the end":          {files{"sparse-tokens": npyInts([]int{2}, 0, 0), "sparse-offsets": npyInts([]int{5}, 0, 0, 0, 0, 3)}, nil, "entry 4 is 3, but there are 2"},
		"no such token":                 {files{"sparse-tokens": npyInts([]int{2, 2, 1}, 0, 1, 6, -1)}, nil, "token 6 of sequence 1, head 0 is not in 0 to 5"},
		"slopes of others":              {files{"alibi": zeros(2)}, []string{"--causal", "top-left"}, "--alibi: shape [2], want [4]"},
		"slopes of nothing":             {files{"alibi": zeros(4)}, nil, "needs --align"},
		"sinks of integers":             {files{"sinks": npyInts([]int{4}, 0, 0, 0, 0)}, nil, "--sinks"},
		"bias of others":                {files{"bias": zeros(2, 3, 5, 6)}, nil, "--bias: shape [2 3 5 6], want [1 or 2, 1 or 4, 1 or 5, 6]"},
		"bias of one key":               {files{"bias": zeros(1, 1, 1, 1)}, nil, "--bias: shape [1 1 1 1]"},
		"bias of rank 3":                {files{"bias": zeros(4, 5, 6)}, nil, "--bias: shape [4 5 6]"},
		"mask of float64":               {files{"mask": npyBytes("<f8", false, []int{1, 1, 5, 6}, make([]byte, 240))}, nil, "bool ('|b1') or uint8 ('|u1') is needed"},
		"mask of floats":                {files{"mask": zeros(1, 1, 5, 6)}, nil, "bool ('|b1') or uint8 ('|u1') is needed"},
		"mask of others":                {files{"mask": npyZeros("|b1", 1, 1, 1, 4, 6)}, nil, "--mask: shape [1 1 4 6]"},
		"blocks without a size":         {files{"block-mask": npyZeros("|b1", 1, 1, 1, 1, 1)}, nil, "--block-mask needs --block-size"},
		"a size without blocks":         {nil, []string{"--block-size", "16,16"}, "--block-size needs --block-mask"},
		"blocks of others":              {files{"block-mask": npyZeros("|b1", 1, 1, 1, 2, 1)}, []string{"--block-size", "16,16"}, "for blocks of 16 rows and 16 keys"},
		"blocks of 3":                   {files{"block-mask": npyZeros("|b1", 1, 1, 1, 2, 1)}, []string{"--block-size", "3,16"}, "--block-size 3,16: want powers of two, at least 16"},
		"half a size":                   {nil, []string{"--block-size", "16"}, "want two numbers from 1 to 2147483647"},
		"half a window":                 {nil, []string{"--window", "16"}, "want two numbers from -1 to 2147483647"},
		"window below -1":               {nil, []string{"--window", "-2,0"}, "want two numbers from -1 to 2147483647"},
		"window of nothing":             {nil, []string{"--window", "2,0"}, "top-left or bottom-right for a --window without a causal mask"},
		"two alignments":                {nil, []string{"--causal", "top-left", "--align", "bottom-right"}, "as --causal has it"},
		"a modifier with an error":      {nil, []string{"--score-mod", "s +"}, "--score-mod: score: at 4 of"},
		"a mask that is a number":       {nil, []string{"--mask-mod", "i - j"}, "the expression is int, not bool: i - j"},
		"a modifier without its table":  {nil, []string{"--mask-mod", "doc[i] == doc[j]"}, "no table \"doc\""},
		"a table without a name":        {nil, []string{"--table", "doc.npy"}, "want name=file"},
		"softcap 0":                     {nil, []string{"--softcap", "0"}, "finite number above 0"},
		"softcap Inf":                   {nil, []string{"--softcap", "inf"}, "finite number above 0"},
		"dropout of 1":                  {nil, []string{"--dropout", "1"}, "probability of at least 0 and below 1"},
		"dropout of NaN":                {nil, []string{"--dropout", "nan"}, "probability of at least 0 and below 1"},
		"a seed without dropout":        {nil, []string{"--dropout-seed", "1"}, "--dropout-seed needs --dropout"},
		"a V of no elements":            {nil, []string{"--v-dim", "0"}, "--v-dim 0"},
		"V twice":                       {nil, []string{"--v-dim", "3"}, "--v and --v-dim exclude one another"},
		"no split":                      {nil, []string{"--fixed-split", "0"}, "--fixed-split 0"},
		"many splits":                   {nil, []string{"--fixed-split", "100000"}, `--fixed-split: "100000" is not a number from 0 to 256`},
		"unknown type":                  {nil, []string{"--kv-dtype", "int4"}, "unknown K/V type"},
		"floats for int8":               {but(int8s, "k", zeros(2, 2, 6, 8)), []string{"--kv-dtype", "int8"}, "int8 ('|i1') is needed"},
		"int8 for floats":               {but(but(int8s, "k-scale", nil), "v-scale", nil), nil, "--k"},
		"int8 without scales":           {but(int8s, "v-scale", nil), []string{"--kv-dtype", "int8"}, "--v-scale is needed with --kv-dtype int8"},
		"scales of nothing":             {files{"k-scale": npyZeros("<f4", 4, 2, 2, 6)}, nil, "--k-scale needs --kv-dtype int8, fp8 or fp8-e5m2"},
		"scales of others":              {but(int8s, "k-scale", npyZeros("<f4", 4, 2, 6, 2)), []string{"--kv-dtype", "int8"}, "--k-scale: shape [2 6 2], want [2 2 6]"},
		"scales of blocks":              {int8s, []string{"--kv-dtype", "int8", "--kv-block", "4"}, "--k-scale: shape [2 2 6], want [2 2 2]"},
		"scales of heads":               {int8s, []string{"--kv-dtype", "int8", "--kv-block", "head"}, "--k-scale: shape [2 2 6], want [2]"},
		"no block of scales":            {int8s, []string{"--kv-dtype", "int8", "--kv-block", "0"}, "neither a positive number, head nor tensor"},
		"blocks of no scales":           {nil, []string{"--kv-block", "4"}, "--kv-block needs --kv-dtype int8, fp8 or fp8-e5m2"},
		"rows that are no q8_0":         {files{"k": npyZeros("|u1", 1, 2, 2, 6, 33), "v": npyZeros("|u1", 1, 2, 2, 6, 34)}, []string{"--kv-dtype", "q8_0"}, "k.npy: rows of 33 bytes, not a multiple of the 34"},
		"head dims of q4_0":             {files{"k": npyZeros("|u1", 1, 2, 2, 6, 18), "v": npyZeros("|u1", 1, 2, 2, 6, 18)}, []string{"--kv-dtype", "q4_0"}, "K has head dim 32, Q has 8"},
		"a file that is not":            {files{"mask": []byte("GGUF")}, nil, "--mask"},
		"a file without a name":         {nil, []string{"--seqused-q", ""}, "--seqused-q needs a file name"},
		"a file that is missing":        {nil, []string{"--sinks", "/no/such/file"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, args := goodFiles(t)
			folder := t.TempDir()
			for flag, file := range c.files {
				path := filepath.Join(folder, flag+".npy")
				require.NoError(t, os.WriteFile(path, file, 0o644))
				args = with(args, "--"+flag, path)
			}
			refused(t, exitInput, c.want, append(args, c.flags...)...)
			nothingWritten(t, dir)
		})
	}
}

func TestOptionsNothingSupports(t *testing.T) {
	dir, args := goodFiles(t)
	folder := t.TempDir()
	for flag, file := range map[string][]byte{"sparse-tokens": npyInts([]int{2, 2, 1}, 0, 1, 2, 3), "block-mask": npyZeros("|b1", 1, 1, 1, 1, 1)} {
		path := filepath.Join(folder, flag+".npy")
		require.NoError(t, os.WriteFile(path, file, 0o644))
		args = with(args, "--"+flag, path)
	}
	refused(t, exitUnsupported, "--block-mask and --sparse-tokens exclude one another", append(args, "--block-size", "16,16")...)
	nothingWritten(t, dir)
}

func TestAVWiderThanK(t *testing.T) {
	_, args := goodFiles(t)
	refused(t, exitInput, "--v-dim 9: K has head dim 8", with(without(args, "--v"), "--v-dim", "9")...)
}

func TestAnOptionFileIsNoOutput(t *testing.T) {
	_, args := goodFiles(t)
	path := filepath.Join(t.TempDir(), "sinks.npy")
	require.NoError(t, os.WriteFile(path, zeros(4), 0o644))
	refused(t, exitInput, "the same file as --sinks", with(with(args, "--sinks", path), "--o", path)...)
}
