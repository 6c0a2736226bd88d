package attention_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// variedCall is a call that differs from a good one in one field.
type variedCall struct {
	name string
	args attention.Args
}

// varied returns calls that differ from a in one field each, of all fields of Args and of its tensors.
func (r *repeatTest) varied(a attention.Args) (all []variedCall) {
	var walk func(name string, at func(*attention.Args) reflect.Value)
	walk = func(name string, at func(*attention.Args) reflect.Value) {
		with := func(what any, set func(v reflect.Value)) {
			b := a
			set(at(&b))
			all = append(all, variedCall{fmt.Sprintf("%s %v", name, what), b})
		}
		v := at(&a)
		switch v.Kind() {
		case reflect.Int, reflect.Int64:
			for _, n := range []int64{-1, 0, 1, 2, 3, 4, 8, 16, 1 << 20, 1 << 32, math.MaxInt64 / 4} {
				with(n, func(v reflect.Value) { v.SetInt(n) })
			}
		case reflect.Uint32, reflect.Uint64:
			with("is 7", func(v reflect.Value) { v.SetUint(7) })
		case reflect.Bool:
			with("true", func(v reflect.Value) { v.SetBool(true) })
		case reflect.Slice:
			with("given", func(v reflect.Value) { v.Set(reflect.MakeSlice(v.Type(), 64, 64)) })
		case reflect.Pointer:
			if v.Type() == reflect.TypeFor[*vk.Buffer]() {
				for what, b := range r.buffers {
					with(what, func(v reflect.Value) { v.Set(reflect.ValueOf(b)) })
				}
			} else {
				with("given", func(v reflect.Value) { v.Set(reflect.New(v.Type().Elem())) })
			}
			with("nil", func(v reflect.Value) { v.SetZero() })
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					walk(name+"."+f.Name, func(a *attention.Args) reflect.Value { return at(a).Field(i) })
				}
			}
			if v.Type() == reflect.TypeFor[attention.Tensor]() {
				for what, m := range r.made {
					with(what, func(v reflect.Value) { v.Set(reflect.ValueOf(m)) })
				}
			}
		default:
			r.t.Fatalf("%s: no other values of a %v", name, v.Type())
		}
	}
	walk("Args", func(a *attention.Args) reflect.Value { return reflect.ValueOf(a).Elem() })
	return all
}

type repeatTest struct {
	*recording
	t       *testing.T
	buffers map[string]*vk.Buffer
	made    map[string]attention.Tensor
}

func newRepeatTest(t *testing.T) *repeatTest {
	r := &repeatTest{newRecording(t, attention.AccessAddresses), t, map[string]*vk.Buffer{}, map[string]attention.Tensor{}}
	for what, bytes := range map[string]uint64{"small": 6, "large": 1 << 16, "closed": 1 << 16} {
		b, err := r.dev.NewBuffer(bytes, vk.BufferOptions{})
		require.NoError(t, err)
		r.buffers[what] = b
		t.Cleanup(func() { require.NoError(t, b.Close()) })
	}
	require.NoError(t, r.buffers["closed"].Close())
	other, err := vk.Open(vk.Options{PipelineCache: "off"})
	require.NoError(t, err)
	foreign, err := other.NewBuffer(1<<16, vk.BufferOptions{})
	require.NoError(t, err)
	r.buffers["of another device"] = foreign
	t.Cleanup(func() { require.NoError(t, foreign.Close()); require.NoError(t, other.Close()) })
	on := attention.On(r.dev)
	for _, dtype := range []attention.DType{attention.F16, attention.F32} {
		for _, sizes := range [][]int{{1, 2, 3, 8}, {1, 1, 5, 8}, {1, 2, 3, 4}, {64}} {
			m, err := on.Tensor(dtype, sizes...)
			require.NoError(t, err)
			r.made[fmt.Sprintf("made as %v %v", dtype, sizes)] = m
			t.Cleanup(func() { require.NoError(t, m.Close()) })
		}
	}
	return r
}

// A call like the one before is not checked as a whole. Each field in turn is changed after a good call: the call is
// refused with the words, or recorded as the dispatch, of an operation that knows of no call before it.
func TestACallAfterAGoodOneIsCheckedToo(t *testing.T) {
	r := newRepeatTest(t)
	for name, call := range map[string]struct {
		fields string // that are changed, if not all: other alignments compile other pipelines
		change func(*attention.Config, *attention.Args)
	}{
		"dense":   {"", func(*attention.Config, *attention.Args) {}},
		"no LSE":  {".LSE", func(_ *attention.Config, a *attention.Args) { a.LSE = attention.Tensor{} }},
		"dropout": {".Dropout", func(c *attention.Config, _ *attention.Args) { c.Dropout = 0.5 }},
		"one buffer": {"Buffer", func(_ *attention.Config, a *attention.Args) {
			a.K.Buffer, a.O.Buffer = a.Q.Buffer, a.Q.Buffer
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			cfg, good := r.op.Config(), attention.Args{Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 3, Sk: 5}}
			for i, x := range []*attention.Tensor{&good.Q, &good.K, &good.V, &good.O, &good.LSE} {
				b := testdevice.Buffer(t, r.dev, 4096)
				*x = attention.Tensor{Buffer: b, Offset: int64(i) * 128}
			}
			r.buffers["Q's"], r.buffers["V's"] = good.Q.Buffer, good.V.Buffer
			call.change(&cfg, &good)
			op, err := attention.New(attention.On(r.dev), cfg)
			mayLack(t, err)
			require.NoError(t, err)
			defer func() { require.NoError(t, op.Close()) }()
			c, again := r.wrap(t)
			record := func(a attention.Args) error { return op.Record(c, a) }
			refused, repeated := 0, 0
			for _, v := range r.varied(good) {
				if !strings.Contains(v.name, call.fields) {
					continue
				}
				attention.ForgetCalls(op)
				want := record(v.args)
				_ = record(v.args)
				alone, known := attention.RepeatedDispatch(op, v.args)
				attention.ForgetCalls(op)
				for range 3 {
					require.NoError(t, record(good))
				}
				behind, repeats := attention.RepeatedDispatch(op, v.args)
				err := record(v.args)
				require.Equal(t, want == nil, err == nil, "%s: %v, alone %v", v.name, err, want)
				if want != nil {
					require.Equal(t, want.Error(), err.Error(), v.name)
					require.False(t, repeats, v.name)
					refused++
				}
				if repeats {
					require.True(t, known, "%s: is repeated, and is not remembered itself", v.name)
					require.Equal(t, alone, behind, v.name)
					repeated++
				}
				again()
			}
			t.Logf("%d refused, %d repeated", refused, repeated)
			require.Equal(t, cfg.Dropout == 0, refused > 10 && repeated > 0)
		})
	}
}
