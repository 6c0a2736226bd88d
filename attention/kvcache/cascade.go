package kvcache

import (
	"fmt"
	"reflect"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/arith"
	"vkattn/internal/problem"
)

// Cascade attention (FlashInfer's cascade inference, one level). Neighbouring sequences of a step that share their
// first pages form a group. One call attends with the rows of a whole group, as one sequence of many rows, to the
// keys of those pages, so that a tile of K and V is read once for all of them. A second call attends with the rows of
// each sequence to its own keys, and a merge of the two states gives O.

// Estimates, for a model with four query heads to a KV head: a cascade takes two dispatches more than the plain path, about
// as long as an H200 reads defaultCascade keys of 4 KiB, and the partial results of a row have the bytes of
// cascadeRowKeys keys.
const (
	defaultCascade = 16384
	cascadeRowKeys = 32
)

// group is neighbouring sequences of a step with rows, and the pages that all of them begin with.
type group struct{ first, end, pages int }

// prefixGroups divides sequences into groups of the most saved keys: those that the groups' sequences but one need not
// read. shared[i] is the number of pages that sequences i-1 and i share.
func prefixGroups(shared []int, page int) (groups []group, saved int) {
	n := len(shared)
	best, last := make([]int, n+1), make([]group, n+1) // of the first sequences; their last group
	for end := 1; end <= n; end++ {
		best[end], last[end] = best[end-1], group{end - 1, end, 0}
		pages := shared[end-1]
		for first := end - 2; first >= 0 && pages > 0; first-- {
			if s := best[first] + (end-first-1)*pages*page; s > best[end] {
				best[end], last[end] = s, group{first, end, pages}
			}
			pages = min(pages, shared[first])
		}
	}
	for end := n; end > 0; end = last[end].first {
		groups = append(groups, last[end])
	}
	return groups, best[n] // the last group comes first
}

// planCascade returns the calls of a cascade and the keys that it saves; 0 where the plain path is taken.
// The lengths of the sequences are those before the step.
func (c *Cache) planCascade(list []NewRows, tables [][]int32) (prefix, own part, saved int) {
	if c.cfg.Cascade < 0 {
		return part{}, part{}, 0
	}
	var with []int // sequences with rows
	for i, x := range list {
		if x.Rows > 0 {
			with = append(with, i)
		}
	}
	shared, rows := make([]int, len(with)), 0
	for i, b := range with {
		rows += list[b].Rows
		if i == 0 {
			continue
		}
		a := with[i-1]
		n := min(list[a].Sequence.len, list[b].Sequence.len) / c.cfg.PageSize
		for shared[i] < n && tables[a][shared[i]] == tables[b][shared[i]] {
			shared[i]++
		}
	}
	least := c.cfg.Cascade
	if least == 0 {
		least = defaultCascade + cascadeRowKeys*rows
	}
	groups, saved := prefixGroups(shared, c.cfg.PageSize)
	if saved < least {
		return part{}, part{}, 0
	}
	for i := len(groups) - 1; i >= 0; i-- {
		g := groups[i]
		all := 0
		for _, b := range with[g.first:g.end] {
			x := list[b]
			own.add(x.Rows, x.Sequence.len+x.Rows-g.pages*c.cfg.PageSize, tables[b][g.pages:])
			all += x.Rows
		}
		prefix.add(all, g.pages*c.cfg.PageSize, tables[with[g.first]][:g.pages]) // no key: LSE is -Inf, O has no weight
	}
	return prefix, own, saved
}

// CascadeKeys is the number of keys that Forward need not read because it computes shared prefixes once;
// 0: the step is no cascade.
func (st *Step) CascadeKeys() int {
	if st == nil {
		return 0
	}
	return st.saved
}

// Forward computes the attention of the new rows of a layer to all tokens of their sequences, on the default stream.
// a has Q, O, options such as LSE and Sinks, and Hq where Q's Device did not make Q; the rest is the step's. It is Args
// and op.Forward, except that a step with a shared prefix is a cascade: see [Config].Cascade. It refuses an Op whose
// HeadDim, HeadDimV, KV or KVBlock, or DType of K and V as they are, is not the cache's.
func (st *Step) Forward(layer int, op *attention.Op, a attention.Args) error {
	plain, err := st.Args(layer, a.Q, a.O, a.Hq)
	if err != nil {
		return err
	}
	c, cfg := st.cache, op.Config()
	if err := c.takes(&cfg); err != nil {
		return err
	}
	cascade := st.saved > 0 && cascades(&cfg, &a, st.all.mostKeys)
	plain.LSE, plain.SparseTokens, plain.Blocks, plain.Bias, plain.Mask = a.LSE, a.SparseTokens, a.Blocks, a.Bias, a.Mask
	plain.ALiBi, plain.ALiBiPerSequence, plain.Sinks = a.ALiBi, a.ALiBiPerSequence, a.Sinks
	plain.DropoutSeed, plain.DropoutOffset, plain.DropoutState = a.DropoutSeed, a.DropoutOffset, a.DropoutState
	plain.MaxLogits = a.MaxLogits
	call := func(s *attention.Stream) error { return op.Forward(s, plain) }
	if !cascade && c.home.Backend().Shared() != nil {
		return call(nil) // layers at the same time
	}
	c.mu.Lock() // until it is recorded: the next Begin writes the numbers of this step over
	defer c.mu.Unlock()
	if err := st.usable(layer); err != nil {
		return err
	}
	if cascade {
		if err := attention.CheckArgs(cfg, plain); err != nil {
			return err
		}
		if call, err = st.cascade(op, cfg, plain); err != nil {
			return err
		}
	}
	return c.dev.Do(call)
}

// takes reports why an Op cannot read the cache.
func (c *Cache) takes(cfg *attention.Config) error {
	differs := func(field string, got, want any) error {
		return &attention.ShapeError{Field: "Forward: the Op: " + field, Got: got, Want: fmt.Sprintf("%v, as the cache has it", want)}
	}
	switch {
	case cfg.HeadDim == 0: // it was not made by New, which Forward says
	case cfg.HeadDim != c.cfg.HeadDim:
		return differs("HeadDim", cfg.HeadDim, c.cfg.HeadDim)
	case cfg.ValueDim() != c.cfg.HeadDimV:
		return differs("HeadDimV", cfg.ValueDim(), c.cfg.HeadDimV)
	case cfg.KeyType != c.cfg.KeyType:
		return differs("KeyType", cfg.KeyType, c.cfg.KeyType)
	case cfg.ValueType != c.cfg.ValueType:
		return differs("ValueType", cfg.ValueType, c.cfg.ValueType)
	case cfg.KeyType == attention.KVSame && cfg.DType != c.cfg.DType:
		return differs("DType", cfg.DType, c.cfg.DType)
	case cfg.KVBlock < 0 || cfg.KVBlock > 1:
		return differs("KVBlock", cfg.KVBlock, 1)
	}
	return nil
}

// cascades reports whether O of all keys is the merge of O of the shared and of the own keys, computed without the
// place of the shared ones: the options of the call are known, and none of them depends on positions.
// keys is the length of the longest sequence.
func cascades(cfg *attention.Config, a *attention.Args, keys int) bool {
	other := *a
	other.Shape, other.Q, other.K, other.V, other.O, other.LSE = attention.Shape{}, attention.Tensor{}, attention.Tensor{}, attention.Tensor{}, attention.Tensor{}, attention.Tensor{}
	other.Sinks, other.KScale, other.VScale, other.Varlen, other.Pages = attention.Vector{}, attention.Vector{}, attention.Vector{}, nil, nil
	known := attention.Config{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, Causal: cfg.Causal,
		Scale: cfg.Scale, Tier: cfg.Tier, Access: cfg.Access, Tuning: cfg.Tuning, Window: cfg.Window, Align: cfg.Align,
		Softcap: cfg.Softcap, KeyType: cfg.KeyType, ValueType: cfg.ValueType, F32O: cfg.F32O, F32Gradients: cfg.F32Gradients, Check: cfg.Check,
		Kernel: cfg.Kernel}
	left := cfg.Window.Left()
	return cfg.HeadDim > 0 && *cfg == known && problem.Alignment((*problem.Config)(cfg)) != attention.TopLeft &&
		(left < 0 || left >= keys-1) && reflect.ValueOf(&other).Elem().IsZero()
}

// cascade returns what records a call: O of the shared keys goes to scratch memory and O of the own keys, with the sinks,
// to its place, where they are merged.
func (st *Step) cascade(op *attention.Op, cfg attention.Config, a attention.Args) (func(*attention.Stream) error, error) {
	c := st.cache
	mergeConfig := merge.MergeConfig{DType: cfg.OType(), HeadDim: cfg.ValueDim(), Access: cfg.Access}
	cfg.Causal, cfg.Align, cfg.Window = attention.CausalNone, attention.CausalNone, attention.Window{} // all of the prefix comes before each row
	prefixOp, err := made(c.prefixOps, cfg, func() (*attention.Op, error) { return attention.New(c.dev, cfg) })
	if err != nil {
		return nil, err
	}
	merger, err := made(c.merges, mergeConfig, func() (*merge.Merge, error) { return merge.NewMerge(c.dev, mergeConfig) })
	if err != nil {
		return nil, err
	}
	prefix, own := a, a
	st.set(&prefix, &st.prefix)
	st.set(&own, &st.own)
	prefix.Sinks = attention.Vector{}
	if prefix.O, prefix.LSE, own.LSE, err = c.states(mergeConfig.DType, int64(a.Hq)*int64(st.rows), int64(mergeConfig.HeadDim)); err != nil {
		return nil, err
	}
	if a.LSE.Given() {
		own.LSE = a.LSE
	}
	return func(s *attention.Stream) error {
		// The own keys first: the dispatch of the prefix needs nothing of them and may overlap. The combine of its splits waits.
		if err := op.Forward(s, own); err != nil {
			return err
		}
		if err := prefixOp.Forward(s, prefix); err != nil {
			return err
		}
		return merger.Forward(s, merge.MergeArgs{Shape: attention.Shape{B: 1, Hq: a.Hq, Sq: st.rows}, O: a.O, LSE: a.LSE,
			First: merge.States{O: prefix.O, LSE: prefix.LSE}, Second: merge.States{O: own.O, LSE: own.LSE}})
	}, nil
}

// states returns scratch memory for O and LSE of the shared keys and for LSE of the own keys. All calls run on one
// stream, so every layer and step may use it again.
func (c *Cache) states(dtype attention.DType, rows, dim int64) (o, lse, ownLSE attention.Tensor, err error) {
	bytes, ok := arith.Product(rows, dim*int64(dtype.Size())+8)
	if !ok {
		return o, lse, ownLSE, &attention.ShapeError{Field: "Step", Got: rows, Want: "fewer rows: O has 2^63 bytes and more"}
	}
	if bytes += 4; bytes > c.scratchBytes { // 4: LSE begins at a whole word
		m, err := c.memory(bytes)
		if err != nil {
			return o, lse, ownLSE, err
		}
		if c.scratch != nil {
			if err := c.scratch.Close(); err != nil {
				return o, lse, ownLSE, err
			}
		}
		c.scratch, c.scratchBytes = m, bytes
	}
	o, lse, ownLSE = c.scratch.Tensor(), c.scratch.Tensor(), c.scratch.Tensor()
	lse.Offset = (rows*dim*int64(dtype.Size()) + 3) / 4
	ownLSE.Offset = lse.Offset + rows
	return o, lse, ownLSE, nil
}

// made returns what a map has for a key, which it makes first if there is none.
func made[K comparable, V any](m map[K]V, key K, make func() (V, error)) (V, error) {
	if v, ok := m[key]; ok {
		return v, nil
	}
	v, err := make()
	if err == nil {
		m[key] = v
	}
	return v, err
}
