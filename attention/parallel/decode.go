package parallel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/vk"
)

// Decode over a cache that is sharded by tokens: each rank attends to its own tokens, all
// ranks gather the states of all, and each merges them in the order of ranks.

// Cache is this rank's part of a KV cache.
type Cache struct {
	K, V     attention.Tensor // [B, Hkv, Capacity, dim]; with Pages, pools [Count, Hkv, PageSize, dim]
	Capacity int              // most tokens of a sequence that this rank holds
	Pages    *attention.Pages // the block table has this rank's tokens

	KScale, VScale attention.Vector // of Scaled types, as in attention.Args
}

// DecodeArgs are the tensors of one decode call. All but Cache and Capacity are the same on
// every rank.
type DecodeArgs struct {
	B, Hq, Hkv int   // B may be 0: the ranks agree on it, and nothing is written
	Sq         int   // new rows of each sequence: those of its last Sq tokens
	Tokens     []int // of each sequence in the cache of all ranks, new ones included
	Q          attention.Tensor
	Cache
	O, LSE attention.Tensor // on every rank; LSE is optional
}

// Shard is how Decode and Append shard a cache over the ranks of the group.
func (op *Op) Shard() Shard {
	if op == nil || op.group == nil {
		return Shard{}
	}
	s := Shard{op.cfg.Block, op.group.Ranks()}
	if s.Block == 0 {
		s.Block = DefaultBlock
	}
	return s
}

// Decode computes O of the last Sq tokens of each sequence over a cache that is sharded by
// tokens. Every rank has all of Q and gets all of O, with the same bits.
//
// With Config.Causal BottomRight a row sees the tokens up to its own, without a causal mask all
// of them. A window and TopLeft are refused. Each rank sends the float32 state of its tokens
// to all others: B Hq Sq (HeadDimV + 1) 4 bytes. O and LSE may hold anything after an error, except
// that they are unchanged if the ranks disagree.
//
// On a device the second call with the same tensors records its work, and later ones submit that. The
// tensors are held only while a call is under way.
func (op *Op) Decode(ctx context.Context, s *attention.Stream, a DecodeArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	defer unordered(s)()
	d := decode{DecodeArgs: a, side: op.newSide(s), shard: op.Shard(), rank: op.group.Rank(), cfg: op.cfg.Config, steps: op.newSteps()}
	records := op.recordings.enter()
	err := op.checkStream(s)
	if err == nil {
		err = d.check(op, records)
	}
	h := header{kind: callDecode, config: op.config, mode: op.shard, sequences: checksumOf(a.Tokens...),
		shape: checksumOf(a.B, a.Hq, attention.Shape{Hq: a.Hq, Hkv: a.Hkv}.KVHeads(), a.Sq)}
	d.steps.done("check")
	begun := false
	begin := func() error {
		if d.B == 0 {
			return nil
		}
		begun = true
		defer d.steps.done("submit")
		return d.begin(op)
	}
	err = op.group.call(ctx, h, err, begin, func(ctx context.Context, _ [][]byte) error {
		d.steps.done("agree")
		if d.B == 0 {
			return nil
		}
		err := d.finish(ctx, op)
		if err == nil {
			err = d.err
		}
		if err == nil && d.finished {
			return nil
		}
		if waited := d.settle(); err == nil {
			err = waited
		}
		return err
	})
	if begun && err != nil {
		_ = d.settle() // what begin submitted, if the ranks disagree
	}
	err = errors.Join(err, d.end(err))
	if records {
		err = errors.Join(err, op.recordings.leave())
	}
	d.steps.done("end")
	return err
}

// decode is a decode call on this rank.
type decode struct {
	DecodeArgs
	side
	cfg         attention.Config
	shard       Shard
	rank        int
	states, lse view   // float32 O and LSE of all ranks, one after the other
	near        Near   // gathers them in host memory; nil: an exchange does
	begun       uint64 // the submission that computes this rank's state

	callKey  decodeKey
	keyed    bool      // the call may be recorded, with this key
	again    *recorded // recordings that compute the call; nil: it is recorded into the stream
	finished bool      // all work has been waited for
	steps    steps
}

// check checks the arguments. With records, a call whose tensors were checked before may use recordings.
func (d *decode) check(op *Op, records bool) error {
	if err := checkTokens(d.Tokens, d.B); err != nil {
		return err
	}
	d.near = op.group.near(int64(d.stateBytes()))
	if d.callKey, d.keyed = d.key(records); d.keyed {
		d.again = op.recordings.find(d.s, &d.callKey) // a call with these tensors was checked
	}
	switch {
	case d.cfg.Causal == attention.TopLeft:
		return fmt.Errorf("%w: Decode with a top-left mask", attention.ErrUnsupported)
	case d.cfg.Window.Given():
		return fmt.Errorf("%w: Decode with a window: the tokens of a rank are not consecutive", attention.ErrUnsupported)
	case d.shard.Ranks > maxStates:
		return fmt.Errorf("%w: Decode over %d ranks, one merge takes %d states", attention.ErrUnsupported, d.shard.Ranks, maxStates)
	}
	for b, n := range d.Tokens {
		if held := d.shard.Count(d.rank, n); held > d.Capacity {
			return &attention.ShapeError{Field: "Capacity", Got: d.Capacity,
				Want: fmt.Sprintf("at least %d for %d tokens of sequence %d", held, n, b)}
		}
	}
	if d.again != nil {
		return nil
	}
	a := d.arguments(0, d.Sq, attention.Vector{}, d.O, d.LSE)
	a.Varlen = nil
	cfg := d.cfg
	cfg.Causal, cfg.Align = attention.CausalNone, attention.CausalNone
	if err := attention.CheckArgs(cfg, a); err != nil {
		return err
	}
	if err := op.checkSide(a.Q, a.K, a.V, a.O, a.LSE); err != nil || d.B == 0 {
		return err
	}
	cfg.F32O = true // of this rank's state, which not all tiers store
	if err := op.takes(cfg, a.Shape); err != nil {
		return err
	}
	states := uint64(d.shard.Ranks)
	if d.Sq > 1 {
		states++ // LSE of some rows
	}
	return op.checkMemory("parallel.Decode", d.stateBytes()*states)
}

// maxStates is the largest number of states of one merge.
const maxStates = 256

// stateBytes is the size of a rank's state.
func (d *decode) stateBytes() uint64 {
	return uint64(d.B) * uint64(d.Hq) * uint64(d.Sq) * uint64(d.cfg.ValueDim()+1) * 4
}

// checkTokens checks the lengths of a batch.
func checkTokens(tokens []int, batch int) error {
	if len(tokens) != batch {
		return &attention.ShapeError{Field: "Tokens", Got: fmt.Sprintf("%d lengths", len(tokens)), Want: batch}
	}
	for _, n := range tokens {
		if n < 0 || n > attention.MaxLength {
			return &attention.ShapeError{Field: "Tokens", Got: n, Want: fmt.Sprintf("0 to %d", attention.MaxLength)}
		}
	}
	return nil
}

// counts are the tokens of this rank that each sequence's new row sees.
func (d *decode) counts(row int) []int {
	list := make([]int, len(d.Tokens))
	for b, n := range d.Tokens {
		if d.cfg.Causal != attention.CausalNone {
			n -= d.Sq - 1 - row
		}
		list[b] = d.shard.Count(d.rank, n)
	}
	return list
}

// arguments are those of rows first to first+n-1 over this rank's tokens, of which used are
// the numbers.
func (d *decode) arguments(first, n int, used attention.Vector, o, lse attention.Tensor) attention.Args {
	q := d.Q
	q.Strides = q.Strides.Resolve(d.Hq, d.Sq, d.cfg.HeadDim)
	if n < d.Sq {
		q.Offset += int64(first) * q.Strides.Seq
	}
	return attention.Args{Shape: attention.Shape{B: d.B, Hq: d.Hq, Hkv: d.Hkv, Sq: n, Sk: d.Capacity}, Q: q, K: d.K, V: d.V, O: o, LSE: lse,
		Pages: d.Pages, KScale: d.KScale, VScale: d.VScale, Varlen: &attention.Varlen{UsedK: used}}
}

// calls divides the new rows into calls: rows that see the same tokens of this rank, and rows
// of which each sees one token more than the row before, in every sequence.
func (d *decode) calls() (spans []Span, causal []bool) {
	// step reports how the counts change after a row: 0 or 1 for all sequences, otherwise -1.
	step := func(row int) int {
		now, next := d.counts(row), d.counts(row+1)
		change := next[0] - now[0]
		for b := range now {
			if next[b]-now[b] != change {
				return -1
			}
		}
		return change
	}
	for first := 0; first < d.Sq; {
		n, change := 1, -1
		for first+n < d.Sq {
			s := step(first + n - 1)
			if s < 0 || n > 1 && s != change {
				break
			}
			change = s
			n++
		}
		spans, causal = append(spans, Span{first, n}), append(causal, n > 1 && change == 1)
		first += n
	}
	return spans, causal
}

// stateConfig is the Config of this rank's state, without a causal mask.
func (d *decode) stateConfig() attention.Config {
	cfg := d.cfg
	cfg.F32O, cfg.Causal, cfg.Align = true, attention.CausalNone, attention.CausalNone
	return cfg
}

// begin computes this rank's state. On a device it submits the work.
func (d *decode) begin(op *Op) error {
	if d.again == nil && d.keyed {
		d.again = d.record(op, &d.callKey)
	}
	if d.again != nil {
		if err := d.replay(); !errors.Is(err, vk.ErrStale) {
			return err
		}
		d.again = nil // for this call another stream has the scratch memory, or a tensor was closed just now
	}
	options := d.options
	if d.near != nil {
		d.options = vk.BufferOptions{Memory: vk.Readback} // kernels write states to the host's memory and read them there
	}
	d.states = d.new(attention.F32, d.shard.Ranks*d.B, d.Hq, d.Sq, d.cfg.ValueDim())
	d.lse = d.new(attention.F32, d.shard.Ranks*d.B, d.Hq, d.Sq, 1)
	d.options = options
	o, lse := d.of(d.states, d.rank), d.of(d.lse, d.rank)
	spans, causal := d.calls()
	for i, s := range spans {
		cfg := d.stateConfig()
		if causal[i] {
			cfg.Causal = attention.BottomRight
		}
		local, err := op.of(cfg)
		if err != nil {
			return err
		}
		part := lse
		if s.N < d.Sq {
			part = d.new(attention.F32, d.B, d.Hq, s.N, 1)
		}
		used := d.lengths(d.counts(s.First + s.N - 1))
		if !d.ordered() {
			return d.err
		}
		if err := local.Forward(d.stream, d.arguments(s.First, s.N, used, o.rowsFrom(s.First, s.N).Tensor, part.Tensor)); err != nil {
			return err
		}
		if s.N < d.Sq {
			d.copy(lse.rowsFrom(s.First, s.N), part)
		}
	}
	var err error
	d.begun, err = d.submit()
	return err
}

// lengths returns int32 numbers for the kernel. With states in the host's memory they are there too,
// which takes no copy on the device.
func (d *decode) lengths(numbers []int) attention.Vector {
	if d.near == nil || d.s == nil {
		return d.vector(numbers)
	}
	options := d.options
	d.options = vk.BufferOptions{Memory: vk.Upload}
	b := d.buffer(int64(4 * len(numbers)))
	d.options = options
	if d.err != nil {
		return attention.Vector{}
	}
	for i, x := range numbers {
		binary.LittleEndian.PutUint32(b.Bytes()[4*i:], uint32(int32(x)))
	}
	return attention.Vector{Buffer: b}
}

// of is the state of a rank.
func (d *decode) of(states view, rank int) view {
	return states.sequencesFrom(rank*d.B, d.B)
}

// finish gathers the states of all ranks and merges them.
func (d *decode) finish(ctx context.Context, op *Op) error {
	if d.near != nil {
		return d.finishNear(ctx, op)
	}
	if err := d.sync(ctx); err != nil {
		return err
	}
	var sends, receives []Transfer
	for r := range d.shard.Ranks {
		if r != d.rank {
			sends = append(sends, transfers(r, d.of(d.states, d.rank), d.of(d.lse, d.rank))...)
			receives = append(receives, transfers(r, d.of(d.states, r), d.of(d.lse, r))...)
		}
	}
	if err := op.group.exchange(ctx, sends, receives); err != nil {
		return err
	}
	return d.merge(op)
}

// finishNear gathers the states through the host's memory. Nothing is left for the host to do between
// the end of the device's work and the gather, or between the gather and the merge, but to submit it:
// the merge is recorded while the device computes the state, or was recorded by an earlier call.
func (d *decode) finishNear(ctx context.Context, op *Op) error {
	if d.s != nil && d.again == nil {
		if err := d.merge(op); err != nil {
			return err
		}
	}
	parts := make([][][]byte, d.shard.Ranks)
	for r := range parts {
		for _, v := range [2]view{d.of(d.states, r), d.of(d.lse, r)} {
			m := v.memory()
			parts[r] = append(parts[r], m.bytes())
		}
	}
	d.steps.done("prepare the merge")
	if err := d.soon(ctx, d.begun); err != nil {
		return err
	}
	d.steps.waited("wait for the state", d.polls)
	if err := op.group.gatherNear(ctx, d.near, parts); err != nil {
		return err
	}
	d.steps.done("gather")
	if d.s == nil {
		return d.merge(op)
	}
	value, err := d.submitMerge(op)
	if err != nil {
		return err
	}
	d.steps.done("submit the merge")
	err = d.soon(ctx, value)
	d.finished = err == nil
	d.steps.waited("wait for the merge", d.polls)
	return err
}

// submitMerge submits the merge that is recorded.
func (d *decode) submitMerge(op *Op) (uint64, error) {
	if d.again != nil {
		value, err := d.s.Replay(d.again.merge)
		if !errors.Is(err, vk.ErrStale) {
			return value, err
		}
		if err := d.merge(op); err != nil {
			return 0, err
		}
	}
	return d.submit()
}

// merge merges the states. On a device it records that.
func (d *decode) merge(op *Op) error {
	m, err := op.merge(d.cfg.DType)
	if err != nil {
		return err
	}
	if !d.ordered() {
		return d.err
	}
	return m.Forward(d.stream, d.mergeArguments(d.states, d.lse))
}

// mergeArguments are those of the merge of all states.
func (d *decode) mergeArguments(states, lse view) merge.MergeArgs {
	packed := func(v view) attention.Tensor { return attention.Tensor{Host: v.Host, Buffer: v.Buffer} }
	first := merge.States{O: packed(states), LSE: packed(lse), Count: d.shard.Ranks}
	return merge.MergeArgs{Shape: attention.Shape{B: d.B, Hq: d.Hq, Sq: d.Sq}, First: first, O: d.O, LSE: d.LSE}
}
