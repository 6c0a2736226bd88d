package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
)

// Problem is what a row computes. It leaves the tier open.
type Problem struct {
	Shape  attention.Shape
	Config attention.Config // without Tier
	Options
	Line   string // name of the problem in its suite, if that has names
	Pass   Pass
	LSE    bool // the forward pass returns LSE too; the other passes always take it from there
	Layers int  // calls of a model, whose total a wide table shows; 0: none
	Ladder bool // each step of the kernel's development runs it
	// Ceiling is set if the problem is a ceiling of the device instead of attention.
	Ceiling Ceiling
}

func (p Problem) String() string {
	switch {
	case p.Ceiling.typed():
		return fmt.Sprintf("%s %v", p.Ceiling, p.Config.DType)
	case p.Ceiling != "":
		return string(p.Ceiling)
	}
	s := fmt.Sprintf("%v %v", p.Config, p.Shape)
	if p.Options != (Options{}) {
		s += " " + p.Options.String()
	}
	if p.LSE {
		s += " with LSE"
	}
	if p.Pass != PassForward {
		s += " " + p.Pass.String()
	}
	return s
}

// row returns a row of the problem without results.
func (p Problem) row(device string) *Row {
	if p.Ceiling != "" {
		return &Row{Device: device, Ceiling: p.Ceiling, Call: fields.Call{DType: p.Config.DType}, problem: p}
	}
	c := p.Config
	row := &Row{Device: device, Call: fields.Of(p.Shape, c), Line: p.Line, Pass: p.Pass, LSE: p.LSE, Layers: p.Layers, problem: p}
	if c.KeyType != attention.KVSame {
		row.KV = problem.KVName(c.KeyType, c.ValueType)
	}
	if p.Blocks == 0 { // with a block mask group.candidate does it, after a check of memory
		row.KVBytes = p.KVBytes()
	}
	if !p.Plain() || c.FixedSplit != 0 || p.LSE {
		row.OptionText = p.OptionText()
	}
	if p.Options != (Options{}) {
		row.Options = &p.Options
	}
	return row
}

// hasLSE reports whether the forward pass of the problem returns LSE.
func (p Problem) hasLSE() bool { return p.LSE || p.Pass != PassForward }

// tensors are the element counts of Q, K, V and O.
func (p Problem) tensors() (q, k, v, o uint64) {
	s, c := p.Shape, p.Config
	rows, keys := hostmem.Product(s.B, s.Hq, s.Sq), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	d, dv := uint64(c.HeadDim), uint64(c.ValueDim())
	return hostmem.Product(rows, d), hostmem.Product(keys, d), hostmem.Product(keys, dv), hostmem.Product(rows, dv)
}

// TFLOPs is 2*B*Hq*(Dqk+Dv)*cells / ms, in 10^12 per second. cells is the number of
// unmasked (row, col) pairs. A backward pass counts as 2.5 times a forward pass, both as 3.5.
func TFLOPs(p Problem, ms float64) float64 {
	if ms <= 0 {
		return 0
	}
	s, c := p.Shape, p.Config
	flops := 2 * float64(s.Hq) * float64(c.HeadDim+c.ValueDim()) * p.cells() * p.Pass.flops()
	return flops / (ms * 1e-3) / 1e12
}

// Pass is what a row times: the forward pass, the backward pass from the O and LSE of a
// forward pass, or both in turn.
type Pass uint8

// The passes. The zero value is the forward pass.
const (
	PassForward Pass = iota
	PassBackward
	PassBoth
)

var passNames = [...]string{"fwd", "bwd", "fwdbwd"}

func (p Pass) String() string {
	if int(p) < len(passNames) {
		return passNames[p]
	}
	return fmt.Sprintf("Pass(%d)", uint8(p))
}

// ParsePass parses "fwd", "bwd" or "fwdbwd".
func ParsePass(s string) (Pass, error) {
	for i, name := range passNames {
		if s == name {
			return Pass(i), nil
		}
	}
	return 0, fmt.Errorf("unknown pass %q, want fwd, bwd or fwdbwd", s)
}

// MarshalText returns the name of the pass.
func (p Pass) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the name of a pass.
func (p *Pass) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePass(string(text))
	return err
}

// flops returns the flops of the pass divided by the flops of the forward pass: two
// products forward and five backward, even if a kernel computes some of them twice.
func (p Pass) flops() float64 { return [...]float64{1, 2.5, 3.5}[p] }

// Options are the options of a problem's calls that are not in its Config. The type is
// comparable; the zero value has none.
type Options struct {
	Lengths     Lengths `json:"lengths,omitempty"`     // of the sequences
	Packed      bool    `json:"packed,omitzero"`       // sequences are packed, not padded
	PageSize    int     `json:"page_size,omitzero"`    // keys of a page of paged K and V, in random order; 0: contiguous
	HND         bool    `json:"hnd,omitzero"`          // pages are [Hkv, page size, D], not [page size, Hkv, D]
	SparseRatio float64 `json:"sparse_ratio,omitzero"` // share of a sequence's tokens that each KV head attends to; 0: all
	SparseTopK  int     `json:"sparse_topk,omitzero"`  // tokens that each query row and KV head attends to; 0: no lists of rows
	Blocks      float64 `json:"block_ratio,omitzero"`  // share of the visible blocks of keys that a block of rows attends to; 0: all
	BlockQ      int     `json:"block_q,omitzero"`
	BlockK      int     `json:"block_k,omitzero"`
	SharedKV    bool    `json:"shared_kv,omitzero"` // V is the first part of K's rows, as in latent attention
	Sinks       bool    `json:"sinks,omitzero"`
	ALiBi       bool    `json:"alibi,omitzero"`
	Tables      Tables  `json:"tables,omitempty"` // of modifiers
}

// lengths returns the rows and keys of each sequence.
func (p Problem) lengths() (rows, keys []int) {
	if p.Options.Lengths != "" {
		return p.Options.Lengths.lists()
	}
	for range p.Shape.B {
		rows, keys = append(rows, p.Shape.Sq), append(keys, p.Shape.Sk)
	}
	return rows, keys
}

// each visits the sequences, n equal ones at a time.
func (p Problem) each(visit func(n, rows, keys int)) {
	if p.Options.Lengths == "" {
		visit(p.Shape.B, p.Shape.Sq, p.Shape.Sk)
	} else {
		p.Options.Lengths.each(visit)
	}
}

// rows is the number of softmax rows of all heads and sequences.
func (p Problem) rows() (all int64) {
	p.each(func(n, rows, _ int) { all += int64(n) * int64(rows) * int64(p.Shape.Hq) })
	return all
}

// sparseKeys is the number of a sequence's keys that a KV head attends to.
func (p Problem) sparseKeys(keys int) int {
	switch {
	case p.Options.SparseTopK > 0:
		return min(keys, p.Options.SparseTopK)
	case p.Options.SparseRatio == 0 || keys == 0:
		return keys
	}
	return min(keys, max(1, int(math.Round(float64(keys)*p.Options.SparseRatio))))
}

// listedKeys is the number of keys that the lists of a sequence's rows name, each once: of lists of rows, which are chosen
// at random, the expected number.
func (p Problem) listedKeys(rows, keys int) int {
	n := p.sparseKeys(keys)
	if p.Options.SparseTopK == 0 || keys == 0 {
		return n
	}
	return int(math.Round(float64(keys) * (1 - math.Pow(1-float64(n)/float64(keys), float64(rows)))))
}

// sparse reports whether lists name the keys to attend to.
func (p Problem) sparse() bool { return p.Options.SparseRatio > 0 || p.Options.SparseTopK > 0 }

// sparseRatio is the share of tokens that are listed as sparse tokens, 1 without lists. Of lists of rows it is the share of
// the keys that the rows may attend to.
func (p Problem) sparseRatio() float64 {
	listed, all := 0, 0
	p.each(func(times, rows, keys int) {
		if p.Options.SparseTopK == 0 {
			listed, all = listed+times*p.sparseKeys(keys), all+times*keys
			return
		}
		for row := range rows {
			lo, hi := p.sees(row, rows, keys)
			n := max(hi-lo, 0)
			listed, all = listed+times*p.sparseKeys(n), all+times*n
		}
	})
	if all == 0 {
		return 1
	}
	return float64(listed) / float64(all)
}

// sees returns the keys from lo up to, not including, hi that causal mask and window
// leave to a row of a sequence.
func (p Problem) sees(row, rows, keys int) (lo, hi int) {
	position := row
	if problem.Alignment((*problem.Config)(&p.Config)) == attention.BottomRight {
		position += keys - rows
	}
	first, end := problem.Span((*problem.Config)(&p.Config), int64(position), int64(keys))
	return int(first), int(end)
}

// counted is the last problem with a mask modifier whose cells were counted. All its rows ask for them.
var counted struct {
	sync.Mutex
	problem Problem
	cells   float64
}

// cells is the number of unmasked (row, key) pairs of one query head over the batch. Of
// sparse tokens it is an estimate from their ratio.
func (p Problem) cells() (n float64) {
	if p.Plain() {
		return float64(p.Shape.B) * float64(p.Shape.Cells(p.Config.Causal))
	}
	if p.Config.MaskMod.Given() { // its keys may be counted one by one
		counted.Lock()
		defer counted.Unlock()
		if counted.problem == p {
			return counted.cells
		}
		defer func() { counted.problem, counted.cells = p, n }()
	}
	var modified maskCells
	p.each(func(times, rows, keys int) {
		if p.Blocks > 0 {
			n += float64(times) * float64(p.blockCells(rows, keys)) / float64(p.Shape.KVHeads())
			return
		}
		for r := range rows {
			lo, hi := p.sees(r, rows, keys)
			if p.sparse() {
				hi = lo + p.sparseKeys(hi-lo)
			}
			if p.Config.MaskMod.Given() && hi > lo {
				n += float64(times) * modified.of(p, r, lo, hi, rows, keys)
				continue
			}
			n += float64(times) * float64(hi-lo)
		}
	})
	return n
}

// keyBytes is the size of a key of one KV head, of its value and of their scales.
func (p Problem) keyBytes() (n uint64) {
	c := p.Config
	n = uint64(max(c.KeyType.RowBytes(c.DType, c.HeadDim), 0))
	if !p.SharedKV {
		n += uint64(max(c.ValueType.RowBytes(c.DType, c.ValueDim()), 0))
	}
	if c.KeyType.Scaled() && c.KVBlock == 0 {
		n += 8
	}
	return n
}

// KVBytes is the size of the keys, values and scales that a call must read: each key that
// any row attends to, once; with lists of rows an estimate. With a block mask it allocates blockBytes.
func (p Problem) KVBytes() (n uint64) {
	n = p.sharedScaleBytes()
	p.each(func(times, rows, keys int) {
		var read uint64 // keys of a sequence, of all heads
		switch {
		case rows == 0 || keys == 0:
		case p.Blocks > 0:
			read = uint64(p.blockKeys(rows, keys))
		default:
			lo, _ := p.sees(0, rows, keys)
			_, hi := p.sees(rows-1, rows, keys)
			read = hostmem.Product(p.listedKeys(rows, max(hi-lo, 0)), p.Shape.KVHeads())
		}
		n = hostmem.Sum(n, hostmem.Product(p.keyBytes(), read, uint64(times)))
	})
	return n
}

// Lengths are the lengths of the sequences of a batch as text: ROWS/KEYS for each
// sequence, or N*ROWS/KEYS for N equal ones, as in "600*1/1024,5*2048/2048". It is a
// string so that a Problem is comparable; [ParseLengths] returns it. If it is empty, all
// sequences have the lengths of the Shape.
type Lengths string

// maxSequences bounds a batch. A larger one is a mistake in the list.
const maxSequences = 1 << 16

// ParseLengths parses a comma list of KEYS, ROWS/KEYS or N*ROWS/KEYS, where N is a number
// of equal sequences. A sequence without ROWS has the given rows, or as many as keys if
// rows is 0. Some lengths may be 0, but not all.
func ParseLengths(s string, rows int) (Lengths, error) {
	var out []string
	sequences, longest := 0, 0
	for _, item := range strings.Split(s, ",") {
		n, lengths := 1, strings.TrimSpace(item)
		if times, rest, ok := strings.Cut(lengths, "*"); ok {
			var err error
			if n, err = length(times, item); err != nil {
				return "", err
			}
			lengths = rest
		}
		sequences += n
		if n == 0 || sequences > maxSequences {
			return "", fmt.Errorf("%q: want 1 to %d sequences", s, maxSequences)
		}
		first, second, both := strings.Cut(lengths, "/")
		if !both {
			second = first
		}
		keys, err := length(second, item)
		if err != nil {
			return "", err
		}
		r := rows
		switch {
		case both:
			if r, err = length(first, item); err != nil {
				return "", err
			}
		case rows == 0:
			r = keys
		}
		longest = max(longest, min(keys, r))
		one := sequence(r, keys)
		if n > 1 {
			one = fmt.Sprintf("%d*%s", n, one)
		}
		out = append(out, one)
	}
	if longest == 0 {
		return "", fmt.Errorf("%q: no sequence has rows and keys", s)
	}
	return Lengths(strings.Join(out, ",")), nil
}

// sequence is an item of Lengths.
func sequence(rows, keys int) string { return fmt.Sprintf("%d/%d", rows, keys) }

func length(s, item string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q: %s is over %d", item, strings.TrimSpace(s), attention.MaxLength)
	}
	if err != nil {
		return 0, fmt.Errorf("%q: want KEYS, ROWS/KEYS or N*ROWS/KEYS", item)
	}
	return int(n), nil
}

// each visits the sequences, n equal ones at a time.
func (l Lengths) each(visit func(n, rows, keys int)) {
	for item := range strings.SplitSeq(string(l), ",") {
		n := 1
		if times, rest, ok := strings.Cut(item, "*"); ok {
			n, _ = strconv.Atoi(times)
			item = rest
		}
		r, k, _ := strings.Cut(item, "/")
		rows, _ := strconv.Atoi(r)
		keys, _ := strconv.Atoi(k)
		visit(n, rows, keys)
	}
}

// lists returns the rows and keys of each sequence.
func (l Lengths) lists() (rows, keys []int) {
	l.each(func(n, r, k int) {
		rows, keys = append(rows, slices.Repeat([]int{r}, n)...), append(keys, slices.Repeat([]int{k}, n)...)
	})
	return rows, keys
}

// bound sets batch and lengths of a shape to the number of sequences and their largest
// lengths.
func (l Lengths) bound(s *attention.Shape) {
	s.B, s.Sq, s.Sk = 0, 1, 1
	l.each(func(n, rows, keys int) { s.B, s.Sq, s.Sk = s.B+n, max(s.Sq, rows), max(s.Sk, keys) })
}
