package attention_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// Calls on a stream have a barrier in front of them where they depend on an earlier call, and none where they may
// overlap.
func TestCallsOnAStreamAreInOrder(t *testing.T) {
	vulkan := testdevice.Open(t)
	dev, s := attention.On(vulkan), testdevice.Stream(t, vulkan, "order")
	const b, heads, rows, dim = 1, 2, 8, 32
	tensor := func(dtype attention.DType, shape ...int) attention.Tensor {
		x, err := dev.Tensor(dtype, shape...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, x.Close()) })
		return x
	}
	row := func() attention.Tensor { return tensor(attention.F16, b, heads, rows, dim) }
	lse := func() attention.Tensor { return tensor(attention.F32, b, heads, rows) }
	op := testdevices.Op(t, dev, attention.Config{HeadDim: dim, Tier: attention.TierScalar})
	join, err := merge.NewMerge(dev, merge.MergeConfig{HeadDim: dim})
	require.NoError(t, err)
	defer func() { require.NoError(t, join.Close()) }()
	put, err := kvcache.NewAppend(dev, kvcache.AppendConfig{HeadDim: dim})
	require.NoError(t, err)
	defer func() { require.NoError(t, put.Close()) }()

	one := attention.Args{Q: row(), K: row(), V: row(), O: row(), LSE: lse()}
	two := one
	two.O, two.LSE = row(), lse()
	grads := attention.BackwardArgs{Args: one, DO: row(), DQ: row(), DK: row(), DV: row()}
	sinks, err := dev.Floats(1, 2)
	require.NoError(t, err)
	withSinks := one
	withSinks.O, withSinks.LSE, withSinks.Sinks = row(), lse(), sinks
	shape := attention.Shape{B: b, Hq: heads, Hkv: heads, Sq: rows, Sk: rows}
	states := merge.MergeArgs{Shape: shape, First: merge.States{O: one.O, LSE: one.LSE}, Second: merge.States{O: two.O, LSE: two.LSE}, O: row(), LSE: lse()}
	used, err := dev.Ints(0)
	require.NoError(t, err)
	into := kvcache.AppendArgs{B: b, Hkv: heads, New: 1, K: tensor(attention.F16, b, heads, 1, dim), V: tensor(attention.F16, b, heads, 1, dim),
		KCache: one.K, VCache: one.V, Capacity: rows, Used: used}

	alone := testdevice.Stream(t, vulkan, "alone")
	alone.NoBarrier = true
	require.NoError(t, alone.Barrier())
	inside := -alone.Barriers() // barriers between the kernels of backward
	require.NoError(t, op.Backward(attention.OnStream(alone), grads))
	inside += alone.Barriers()
	require.NoError(t, alone.Finish())

	forward := func(a attention.Args) func() error {
		return func() error { return op.Forward(attention.OnStream(s), a) }
	}
	for _, step := range []struct {
		name    string
		call    func() error
		barrier bool
	}{
		{"forward", forward(one), false},
		{"forward of the same Q, K and V to another O", forward(two), false},
		{"merge of both", func() error { return join.Forward(attention.OnStream(s), states) }, true},
		{"forward with sinks to memory of its own", forward(withSinks), false},
		{"backward, which reads O", func() error { return op.Backward(attention.OnStream(s), grads) }, false}, // the merge had a barrier
		{"forward to O again, which backward reads", forward(one), true},
		{"append to K and V, which forward reads", func() error { return put.Forward(attention.OnStream(s), into) }, true},
		{"forward, which reads them", forward(two), true},
		{"sinks written", func() error { return s.Fill(vk.BufferRange{Buffer: sinks.Buffer}, 0) }, false},
		{"forward with them", forward(withSinks), true},
	} {
		if step.name == "forward" {
			require.NoError(t, s.Barrier()) // begins the batch
		}
		before := s.Barriers()
		require.NoError(t, step.call(), step.name)
		want := 0
		if step.barrier {
			want = 1
		}
		if step.name == "backward, which reads O" {
			want = inside
		}
		require.Equal(t, want, s.Barriers()-before, step.name)
	}
	require.NoError(t, s.Finish())
}

// Every tensor and vector of a call is ordered, from its first word to its last: a call has a barrier in front of it
// after its memory was written, and what writes its inputs, or reads its outputs, has one behind the call.
func TestEveryTensorOfACallIsInOrder(t *testing.T) {
	d := newBackwardDevice(t)
	dev, s := attention.On(d.dev), d.stream
	const b, heads, rows, dim = 2, 2, 16, 32
	tensor := func(bytes int) attention.Tensor { return attention.Tensor{Host: make([]byte, bytes)} }
	vector := func(words int) attention.Vector { return attention.Vector{Host: make([]byte, 4*words)} }
	row := func() attention.Tensor { return tensor(b * heads * rows * dim * 2) }
	lse := func() attention.Tensor { return tensor(b * heads * rows * 4) }
	shape := attention.Shape{B: b, Hq: heads, Hkv: heads, Sq: rows, Sk: rows}
	dense := func() attention.Args {
		return attention.Args{Shape: shape, Q: row(), K: row(), V: row(), O: row(), LSE: lse()}
	}
	varlen := func() attention.Args {
		a := dense()
		a.Varlen = &attention.Varlen{CuQ: vector(b + 1), CuK: vector(b + 1), TotalQ: b * rows, TotalK: b * rows, UsedQ: vector(b), UsedK: vector(b)}
		a.ALiBi, a.Sinks = vector(heads), vector(heads)
		a.Bias = &attention.Bias{Tensor: tensor(b * heads * rows * rows * 4), DType: attention.F32}
		a.Mask = &attention.Mask{Tensor: tensor(b * heads * rows * rows)}
		return a
	}
	paged := func(rowBytes int, scaled bool) attention.Args {
		const pages, page = 4, 8
		a := dense()
		a.K, a.V = tensor(pages*heads*page*rowBytes), tensor(pages*heads*page*rowBytes)
		a.Pages = &attention.Pages{Table: vector(b * 2), Stride: 2, PageSize: page, Count: pages}
		a.Varlen = &attention.Varlen{UsedK: vector(b)}
		if scaled {
			a.KScale, a.VScale = vector(pages*heads*page), vector(pages*heads*page)
		}
		return a
	}
	sparse := dense()
	sparse.SparseTokens = &attention.SparseTokens{Offsets: vector(b*heads + 1), Tokens: vector(10), Total: 10}
	blocks := dense()
	blocks.Blocks = &attention.Blocks{Map: vector(b * heads), BlockQ: 16, BlockK: 16}
	strided := dense()
	strided.K.Strides = attention.BSHD(heads, rows, dim)
	strided.V.Strides = attention.Strides{Head: dim, Seq: heads * dim} // all batches have one V
	strided.V.Host = strided.V.Host[:rows*heads*dim*2]
	grads := func(a attention.Args) attention.BackwardArgs {
		return attention.BackwardArgs{Args: a, DO: row(), DLSE: lse(), DQ: row(), DK: row(), DV: row(),
			DBias: tensor(b * heads * rows * rows * 4), DSinks: vector(heads)}
	}
	states := func() merge.States {
		return merge.States{O: tensor(2 * b * heads * rows * dim * 2), LSE: tensor(2 * b * heads * rows * 4), Count: 2}
	}
	merged := merge.MergeArgs{Shape: shape, First: states(), Second: states(), O: row(), LSE: lse()}
	const pages, page = 4, 8
	fresh := func() attention.Tensor { return tensor(heads * rows * dim * 2) }
	pool := func() attention.Tensor { return tensor(pages * heads * page * dim) }
	packedAppend := kvcache.AppendArgs{B: b, Hkv: heads, Hq: heads, K: fresh(), V: fresh(), CuNew: vector(b + 1), TotalNew: rows,
		KCache: pool(), VCache: pool(), KScale: vector(pages * heads * page), VScale: vector(pages * heads * page),
		Pages: &attention.Pages{Table: vector(b * 2), Stride: 2, PageSize: page, Count: pages}, Used: vector(b),
		Cos: vector(4 * dim / 2), Sin: vector(4 * dim / 2), Positions: 4, Q: fresh(), QOut: fresh()}
	flatAppend := kvcache.AppendArgs{B: b, Hkv: heads, New: rows, K: row(), V: row(), UsedNew: vector(b), Used: vector(b),
		KCache: tensor(b * heads * 20 * 34), VCache: tensor(b * heads * 20 * 34), Capacity: 20}

	type call struct {
		name    string
		args    any
		outputs []string
		record  func() error
	}
	var calls []call
	forward := func(name string, cfg attention.Config, a attention.Args) {
		cfg.HeadDim, cfg.Causal = dim, attention.BottomRight
		op := d.op(t, cfg)
		calls = append(calls, call{name, &a, []string{".O", ".LSE"}, func() error { return op.Forward(attention.OnStream(s), a) }})
	}
	backward := func(name string, a attention.Args) {
		op, g := d.op(t, attention.Config{HeadDim: dim, Causal: attention.BottomRight}), grads(a)
		calls = append(calls, call{name, &g, []string{".DQ", ".DK", ".DV", ".DBias", ".DSinks"}, func() error { return op.Backward(attention.OnStream(s), g) }})
	}
	forward("strided", attention.Config{}, strided)
	forward("varlen, ALiBi, sinks, bias, mask, split", attention.Config{FixedSplit: 2}, varlen())
	forward("int8 pages", attention.Config{KeyType: attention.KVInt8, ValueType: attention.KVInt8}, paged(dim, true))
	forward("q8_0 pages", attention.Config{KeyType: attention.KVQ8_0, ValueType: attention.KVQ8_0}, paged(34, false))
	forward("sparse", attention.Config{}, sparse)
	forward("blocks", attention.Config{}, blocks)
	backward("gradients", varlen())
	join, err := merge.NewMerge(dev, merge.MergeConfig{HeadDim: dim})
	require.NoError(t, err)
	defer func() { require.NoError(t, join.Close()) }()
	calls = append(calls, call{"merge", &merged, []string{".O", ".LSE"}, func() error { return join.Forward(attention.OnStream(s), merged) }})
	for name, x := range map[string]*kvcache.AppendArgs{"packed append": &packedAppend, "append": &flatAppend} {
		cfg := kvcache.AppendConfig{HeadDim: dim, KeyType: attention.KVQ8_0, ValueType: attention.KVQ8_0}
		if x == &packedAppend {
			cfg.KeyType, cfg.ValueType, cfg.Rotary = attention.KVInt8, attention.KVInt8, kvcache.Rotary{Dim: dim}
		}
		p, err := kvcache.NewAppend(dev, cfg)
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Close()) }()
		calls = append(calls, call{name, x, []string{".KCache", ".VCache", ".KScale", ".VScale", ".QOut"}, func() error { return p.Forward(attention.OnStream(s), *x) }})
	}
	seen := map[string]bool{}
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			u := uploaded{}
			u.move(t, d, c.args)
			other, err := d.dev.NewBuffer(64, vk.BufferOptions{})
			require.NoError(t, err)
			grows := func(f func() error) int {
				before := s.Barriers()
				require.NoError(t, f())
				return s.Barriers() - before
			}
			require.NoError(t, s.Barrier())
			s.NoBarrier = true
			inside := grows(c.record)
			s.NoBarrier = false
			eachBuffer(reflect.ValueOf(c.args).Elem(), "", func(path string, x *vk.Buffer) {
				seen[fmt.Sprintf("%T%s", c.args, path)] = true
				for _, at := range []uint64{0, x.Size() - 4} {
					word := vk.BufferRange{Buffer: x, Offset: at &^ 3, Size: 4}
					require.NoError(t, s.Barrier())
					require.NoError(t, s.Fill(word, 0))
					require.Equal(t, inside+1, grows(c.record), "%s was written at %d of %d", path, at, x.Size())
					out := slices.Contains(c.outputs, path)
					want := 0
					if out {
						want = 1
					}
					require.NoError(t, s.Barrier())
					require.Equal(t, inside, grows(c.record))
					read := func() error { return s.Copy(vk.BufferRange{Buffer: other, Size: 4}, word) }
					require.Equal(t, want, grows(read), "%s is read", path)
					require.NoError(t, s.Barrier())
					require.NoError(t, c.record())
					require.Equal(t, 1, grows(func() error { return s.Fill(word, 0) }), "%s is written", path)
				}
			})
			require.NoError(t, s.Finish())
		})
	}
	for _, x := range []any{&attention.Args{}, &attention.BackwardArgs{}, &merge.MergeArgs{}, &kvcache.AppendArgs{}} {
		eachMemory(reflect.TypeOf(x).Elem(), "", func(path string) {
			if path == ".DropoutState" || path == ".MaxLogits" { // Vulkan tiers refuse them
				return
			}
			if !seen[fmt.Sprintf("%T%s", x, path)] {
				t.Errorf("%T%s: no call has it", x, path)
			}
		})
	}
}

// eachBuffer visits the buffers of arguments.
func eachBuffer(v reflect.Value, path string, visit func(path string, b *vk.Buffer)) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch x := v; {
	case x.Kind() != reflect.Struct:
	case x.Type() == reflect.TypeFor[attention.Tensor]() || x.Type() == reflect.TypeFor[attention.Vector]():
		if b := x.FieldByName("Buffer").Interface().(*vk.Buffer); b != nil {
			visit(path, b)
		}
	default:
		for i := range x.NumField() {
			name := "." + x.Type().Field(i).Name
			if name == ".Args" {
				name = ""
			}
			eachBuffer(x.Field(i), path+name, visit)
		}
	}
}

// eachMemory visits the tensors and vectors that arguments may have.
func eachMemory(x reflect.Type, path string, visit func(path string)) {
	if x.Kind() == reflect.Pointer {
		x = x.Elem()
	}
	switch {
	case x.Kind() != reflect.Struct, x == reflect.TypeFor[attention.BlockMap](): // an Op makes the memory of a map
	case x == reflect.TypeFor[attention.Tensor]() || x == reflect.TypeFor[attention.Vector]():
		visit(path)
	default:
		for i := range x.NumField() {
			if name := x.Field(i).Name; name != "Args" { // of BackwardArgs, which has them as a call of Forward
				eachMemory(x.Field(i).Type, path+"."+name, visit)
			}
		}
	}
}
