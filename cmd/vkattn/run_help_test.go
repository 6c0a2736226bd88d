package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
)

// Each test here holds `vkattn run` to a paragraph of its help, by numbers computed as
// the help says and not by the library.

const helpSeed = 11

// call of `vkattn run` on float32 files.
type helpRun struct {
	t    *testing.T
	dir  string
	args []string
	r    *rand.Rand
}

func newHelpRun(t *testing.T) *helpRun {
	t.Logf("seed %d", helpSeed)
	dir := t.TempDir()
	return &helpRun{t, dir, []string{"run", "--device", "cpu", "--dtype", "f32", "--o", filepath.Join(dir, "o.npy"), "--lse", filepath.Join(dir, "lse.npy")},
		rand.New(rand.NewPCG(helpSeed, 0))}
}

func (h *helpRun) write(flag string, file []byte) {
	path := filepath.Join(h.dir, flag+".npy")
	require.NoError(h.t, os.WriteFile(path, file, 0o644))
	h.args = append(h.args, "--"+flag, path)
}

func elementsOf(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// floats writes values of a shape, random ones where none are given.
func (h *helpRun) floats(flag string, shape []int, v ...float32) []float32 {
	if v == nil {
		for range elementsOf(shape) {
			v = append(v, float32(h.r.IntN(64)-32)/16)
		}
	}
	data := make([]byte, 4*len(v))
	half.EncodeF32(data, v)
	h.write(flag, npyBytes("<f4", false, shape, data))
	return v
}

func (h *helpRun) ints(flag string, shape []int, v ...int32) { h.write(flag, npyInts(shape, v...)) }

// bytes writes random bytes of a type.
func (h *helpRun) bytes(flag, descr string, shape []int) []byte {
	data := make([]byte, elementsOf(shape))
	for i := range data {
		data[i] = byte(h.r.Uint32())
	}
	h.write(flag, npyBytes(descr, false, shape, data))
	return data
}

// run returns O and LSE of given shapes.
func (h *helpRun) run(o, lse []int, flags ...string) (gotO, gotLSE []float32) {
	h.t.Helper()
	code, _, stderr := call(append(h.args, flags...)...)
	require.Equal(h.t, exitOK, code, stderr)
	return readFloats(h.t, filepath.Join(h.dir, "o.npy"), o), readFloats(h.t, filepath.Join(h.dir, "lse.npy"), lse)
}

// softmax is the row of scores s over values v with a sink, -Inf for none.
func softmax(s []float64, v []float64, sink float64) (o, lse float64) {
	sum := math.Exp(sink)
	for i := range s {
		sum += math.Exp(s[i])
		o += math.Exp(s[i]) * v[i]
	}
	lse = math.Log(sum)
	if len(s) > 0 {
		o /= sum
	}
	return o, lse
}

// "Scores": the order of the modifiers, positions, window, and sinks in LSE, for a
// sequence with keys and one without.
func TestRunComputesTheScoresOfItsHelp(t *testing.T) {
	const sq, sk, slope, softcap, scale = 3, 5, 0.375, 1.25, 0.75
	for _, align := range []string{"top-left", "bottom-right"} {
		for _, causal := range []bool{false, true} {
			h := newHelpRun(t)
			q, k, v := h.floats("q", []int{2, 1, sq, 1}), h.floats("k", []int{2, 1, sk, 1}), h.floats("v", []int{2, 1, sk, 1})
			bias := h.floats("bias", []int{1, 1, sq, sk})
			h.floats("alibi", []int{1}, slope)
			sink := float64(h.floats("sinks", []int{1})[0])
			h.ints("seqused-k", []int{2}, sk, 0)
			flags := []string{"--softcap", fmt.Sprint(softcap), "--scale", fmt.Sprint(scale), "--window", "2,1", "--align", align}
			if causal {
				flags[len(flags)-2] = "--causal"
			}
			o, lse := h.run([]int{2, 1, sq, 1}, []int{2, 1, sq}, flags...)
			for r := range sq {
				i := r
				if align == "bottom-right" {
					i += sk - sq
				}
				var scores, values []float64
				for j := max(0, i-2); j < min(sk, i+2) && !(causal && j > i); j++ {
					s := scale * float64(q[r]) * float64(k[j])
					s = softcap * math.Tanh(s/softcap)
					s += float64(bias[r*sk+j])
					s -= slope * math.Abs(float64(i-j))
					scores, values = append(scores, s), append(values, float64(v[j]))
				}
				wantO, wantLSE := softmax(scores, values, sink)
				require.InDelta(t, wantO, o[r], 1e-5, "%s, causal %v, row %d", align, causal, r)
				require.InDelta(t, wantLSE, lse[r], 1e-5, "%s, causal %v, row %d", align, causal, r)
				require.Zero(t, o[sq+r], "no keys")
				require.InDelta(t, sink, lse[sq+r], 1e-6, "no keys")
			}
		}
	}
}

// "Choice of keys": what counts in a list of tokens.
func TestRunReadsTokenListsAsItsHelpSays(t *testing.T) {
	const sk = 6
	for name, c := range map[string]struct {
		tokens, offsets []int32
		flags           []string
		used            int32
		counts          []int
	}{
		"any order":                     {tokens: []int32{5, 0, 3}, used: sk, counts: []int{5, 0, 3}},
		"-1 anywhere":                   {tokens: []int32{-1, 4, -1, 1, -1}, used: sk, counts: []int{4, 1}},
		"twice counts twice":            {tokens: []int32{2, 2, 0}, used: sk, counts: []int{2, 2, 0}},
		"past the length":               {tokens: []int32{4, 5, 1, 0}, used: 5, counts: []int{4, 1, 0}},
		"excluded by the causal mask":   {tokens: []int32{5, 0, 2}, used: sk, flags: []string{"--causal", "top-left"}, counts: []int{0}},
		"excluded by the window":        {tokens: []int32{5, 0, 4}, used: sk, flags: []string{"--window", "1,0", "--align", "bottom-right"}, counts: []int{5, 4}},
		"none":                          {tokens: []int32{-1}, used: sk},
		"offsets that leave tokens out": {tokens: []int32{1, 5, 5, 2}, offsets: []int32{1, 3}, used: sk, counts: []int{5, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHelpRun(t)
			q, k, v := h.floats("q", []int{1, 1, 1, 1}), h.floats("k", []int{1, 1, sk, 1}), h.floats("v", []int{1, 1, sk, 1})
			h.ints("seqused-k", []int{1}, c.used)
			// --seqused-k would be Sk in pages; here Sk is K's axis, so that tokens may be past the length.
			if c.offsets == nil {
				h.ints("sparse-tokens", []int{1, 1, len(c.tokens)}, c.tokens...)
			} else {
				h.ints("sparse-tokens", []int{len(c.tokens)}, c.tokens...)
				h.ints("sparse-offsets", []int{2}, c.offsets...)
			}
			o, lse := h.run([]int{1, 1, 1, 1}, []int{1, 1, 1}, append(c.flags, "--scale", "1")...)
			var scores, values []float64
			for _, j := range c.counts {
				scores, values = append(scores, float64(q[0]*k[j])), append(values, float64(v[j]))
			}
			wantO, wantLSE := softmax(scores, values, math.Inf(-1))
			require.InDelta(t, wantO, o[0], 1e-5)
			if math.IsInf(wantLSE, -1) {
				require.Equal(t, float32(math.Inf(-1)), lse[0])
			} else {
				require.InDelta(t, wantLSE, lse[0], 1e-5)
			}
		})
	}
}

// kvLayout is a way to hold 2 sequences of 3 and 5 keys.
type kvLayoutCase struct {
	name          string
	shape         []int            // of K and V, but for the elements
	q             []int            // of Q
	setup         func(h *helpRun) // lengths and pages
	place         [2][]int         // of each sequence's keys: the row in K and V
	rows          int              // of K and V in all
	groupOf       func(row int) int
	groups        int // of scales, in all
	scales        []int
	biasQ, biasSk int
}

// kvLayouts have scales for 2 keys each.
func kvLayouts() []kvLayoutCase {
	return []kvLayoutCase{
		{name: "padded", shape: []int{2, 1, 5}, q: []int{2, 1, 2, 32}, setup: func(h *helpRun) { h.ints("seqused-k", []int{2}, 3, 5) },
			place: [2][]int{{0, 1, 2}, {5, 6, 7, 8, 9}}, rows: 10, groupOf: func(r int) int { return r/5*3 + r%5/2 }, groups: 6, scales: []int{2, 1, 3}, biasQ: 2, biasSk: 5},
		{name: "packed", shape: []int{9, 1}, q: []int{4, 1, 32}, setup: func(h *helpRun) {
			h.ints("cu-seqlens-q", []int{3}, 0, 1, 4)
			h.ints("cu-seqlens-k", []int{3}, 0, 3, 8)
		}, place: [2][]int{{0, 1, 2}, {3, 4, 5, 6, 7}}, rows: 9, groupOf: func(r int) int { return r / 2 }, groups: 5, scales: []int{1, 5}, biasQ: 3, biasSk: 5},
		{name: "pages", shape: []int{4, 3, 1}, q: []int{2, 1, 2, 32}, setup: func(h *helpRun) {
			h.ints("block-table", []int{2, 3}, 2, -9, 1<<30, 0, 3, 77) // of which sequence 0 has one, and 1 two
			h.ints("seqused-k", []int{2}, 3, 5)
		}, place: [2][]int{{6, 7, 8}, {0, 1, 2, 9, 10}}, rows: 12, groupOf: func(r int) int { return r/3*2 + r%3/2 }, groups: 8, scales: []int{4, 1, 2}, biasQ: 2, biasSk: 5},
	}
}

// The help of commands with --kv-dtype names every type.
func TestHelpNamesEveryKVType(t *testing.T) {
	for _, command := range [][]string{{"run", "--help"}, {"help", "options"}} {
		_, stdout, stderr := call(command...)
		for _, kv := range attention.KVTypes() {
			require.Regexp(t, `storage types? of K and V:[^:(]*\b`+kv.String()+`\b`, stdout+stderr, command)
		}
	}
}

// "Quantized K and V": where blocks of --kv-block begin, the scales of V with --v-dim,
// and the bytes of blocks. Elements decoded here as the help says give the result
// of the quantized files, through every layout; "Pages" and "Sizes" too.
func TestRunReadsQuantizedFilesAsItsHelpSays(t *testing.T) {
	decodeF16 := func(b []byte) float32 { return half.F16ToFloat32(uint16(b[0]) | uint16(b[1])<<8) }
	for _, l := range kvLayouts() {
		for _, kv := range []string{"int8", "int8, v-dim", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q8_0, v-dim"} {
			t.Run(l.name+", "+kv, func(t *testing.T) {
				kvType, _, _ := strings.Cut(kv, ",")
				h := newHelpRun(t)
				q := h.floats("q", l.q)
				l.setup(h)
				bias := h.floats("bias", []int{1, 1, l.biasQ, l.biasSk})
				// read is the elements of K or V, 32 a row.
				read := func(flag string) (x []float32) {
					if size := map[string]int{"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}[kvType]; size > 0 {
						data := h.bytes(flag, "|u1", append(append([]int{}, l.shape...), size))
						for r := range l.rows {
							b := data[r*size:][:size]
							b[0], b[1] = byte(h.r.Uint32()), 0x20|b[1]&3 // a scale of about 2^-7
							if kvType[3:] == "1" {
								b[2], b[3] = byte(h.r.Uint32()), 0xa0|b[3]&7 // a minimum of about -2^-6
							}
							var row [32]float32
							for i := range row {
								code := int(b[size-16+i%16] >> (i / 16 * 4) & 15)
								if kvType[:2] == "q5" {
									code += int(b[size-20+i/8]>>(i%8)&1) * 16
								}
								switch kvType {
								case "q8_0":
									row[i] = decodeF16(b) * float32(int8(b[2+i]))
								case "q4_0":
									row[i] = decodeF16(b) * float32(code-8)
								case "q5_0":
									row[i] = decodeF16(b) * float32(code-16)
								case "iq4_nl":
									row[i] = decodeF16(b) * []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}[code]
								default:
									row[i] = decodeF16(b)*float32(code) + decodeF16(b[2:])
								}
							}
							x = append(x, row[:]...)
						}
						// Again, with those scales.
						require.NoError(t, os.WriteFile(filepath.Join(h.dir, flag+".npy"), npyBytes("|u1", false, append(append([]int{}, l.shape...), size), data), 0o644))
						return x
					}
					for _, b := range h.bytes(flag, "|i1", append(append([]int{}, l.shape...), 32)) {
						x = append(x, float32(int8(b)))
					}
					return x
				}
				scaled := func(flag string, x []float32) []float32 {
					var s []float32
					for range l.groups {
						s = append(s, float32(1+h.r.IntN(15))/512)
					}
					h.floats(flag, l.scales, s...)
					out := make([]float32, len(x))
					for i := range out {
						out[i] = x[i] * s[l.groupOf(i/32)]
					}
					return out
				}
				flags := []string{"--kv-dtype", kvType, "--scale", "0.125"}
				k := read("k")
				v := k
				if kv == "int8, v-dim" || kv == "q8_0, v-dim" {
					flags = append(flags, "--v-dim", "32")
				} else {
					v = read("v")
				}
				if kvType == "int8" {
					flags = append(flags, "--kv-block", "2")
					k, v = scaled("k-scale", k), scaled("v-scale", v)
				}
				oShape, lseShape := l.q, []int{2, 1, 2}
				if l.name == "packed" {
					lseShape = []int{1, 4}
				}
				o, lse := h.run(oShape, lseShape, flags...)
				for b, rows := range [][]int{{0, 1}, {2, 3}} {
					if l.name == "packed" {
						rows = [][]int{{0}, {1, 2, 3}}[b]
					}
					for n, row := range rows {
						var scores []float64
						for j, place := range l.place[b] {
							s := 0.0
							for i := range 32 {
								s += float64(q[row*32+i]) * float64(k[place*32+i])
							}
							scores = append(scores, 0.125*s+float64(bias[n*l.biasSk+j]))
						}
						for i := range 32 {
							var values []float64
							for _, place := range l.place[b] {
								values = append(values, float64(v[place*32+i]))
							}
							wantO, wantLSE := softmax(scores, values, math.Inf(-1))
							require.InDelta(t, wantO, o[row*32+i], 1e-4, "sequence %d, row %d, column %d", b, n, i)
							require.InDelta(t, wantLSE, lse[row], 1e-4, "sequence %d, row %d", b, n)
						}
					}
				}
			})
		}
	}
}

// "Sizes" of --mask and --block-mask: [.., Sq, Sk] of the longest sequence, counted from
// the start of each.
func TestRunTakesTheSizesOfItsHelp(t *testing.T) {
	for _, l := range kvLayouts() {
		for _, flag := range []string{"mask", "block-mask"} {
			t.Run(l.name+", "+flag, func(t *testing.T) {
				h := newHelpRun(t)
				h.floats("q", l.q)
				k := append(append([]int{}, l.shape...), 32)
				h.floats("k", k)
				v := h.floats("v", k)
				l.setup(h)
				shape, on := []int{1, 1, l.biasQ, l.biasSk}, make([]byte, l.biasQ*l.biasSk)
				var flags []string
				if flag == "block-mask" {
					shape, on, flags = []int{1, 1, 1, 1}, []byte{1}, []string{"--block-size", "16,16"}
				} else {
					for r := range l.biasQ { // each row attends to the third key of its sequence
						on[r*l.biasSk+2] = 1
					}
				}
				h.write(flag, npyBytes("|b1", false, shape, on))
				lse := []int{2, 1, 2}
				if l.name == "packed" {
					lse = []int{1, 4}
				}
				o, _ := h.run(l.q, lse, flags...)
				if flag == "mask" {
					for row := range 4 {
						b := row / 2
						if l.name == "packed" {
							b = min(row, 1)
						}
						require.Equal(t, v[l.place[b][2]*32:][:32], o[row*32:][:32], "row %d", row)
					}
				}
				shape[3]++
				require.NoError(t, os.WriteFile(filepath.Join(h.dir, flag+".npy"), npyBytes("|b1", false, shape, make([]byte, elementsOf(shape))), 0o644))
				refused(t, exitInput, "--"+flag+": shape", append(h.args, flags...)...)
			})
		}
	}
}

// "Pages": without --seqused-k a sequence fills its row of the table, and Sk is that.
func TestRunFillsTheBlockTableWithoutLengths(t *testing.T) {
	h := newHelpRun(t)
	h.floats("q", []int{1, 1, 1, 1}, 0)
	h.floats("k", []int{3, 2, 1, 1})
	v := h.floats("v", []int{3, 2, 1, 1})
	h.ints("block-table", []int{1, 2}, 2, 0)
	h.floats("bias", []int{1, 1, 1, 4}, 0, 0, 0, 0)
	o, _ := h.run([]int{1, 1, 1, 1}, []int{1, 1, 1})
	require.InDelta(t, (v[4]+v[5]+v[0]+v[1])/4, o[0], 1e-6)
}
