package attention_test

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// manyOptions is a case with most options and every gradient.
func manyOptions(t require.TestingT) *backwardCase {
	for _, row := range backwardTable {
		if row.name == "softcap, bias, ALiBi, sinks, causal, window, padded" {
			c := newBackward(row.cfg, row.shape, layoutsByName[row.layout], 77)
			row.set(t, c)
			c.giveOutputs(t)
			return c
		}
	}
	require.Fail(t, "the case is gone")
	return nil
}

// outputsOf are the memory of each gradient of a call.
func outputsOf(a *attention.BackwardArgs) map[string][]byte {
	return map[string][]byte{"DQ": a.DQ.Host, "DK": a.DK.Host, "DV": a.DV.Host, "DBias": a.DBias.Host, "DSinks": a.DSinks.Host}
}

func copyOf(a attention.BackwardArgs) attention.BackwardArgs {
	for _, host := range []*[]byte{&a.O.Host, &a.LSE.Host, &a.DQ.Host, &a.DK.Host, &a.DV.Host, &a.DBias.Host, &a.DSinks.Host} {
		*host = bytes.Clone(*host)
	}
	return a
}

// Each gradient alone has the bits that it has among the others, however tensors are
// reached, and nothing else is written.
func TestBackwardOfSomeGradients(t *testing.T) {
	d := newBackwardDevice(t)
	c := manyOptions(t)
	all := copyOf(c.BackwardArgs)
	d.run(t, c.cfg, all)
	for _, access := range recordTests {
		if access == attention.AccessAddresses && !d.takesAddresses() {
			continue
		}
		cfg := c.cfg
		cfg.Access = access
		for _, only := range []string{"DQ", "DK", "DV", "DBias", "DSinks"} {
			some := copyOf(c.BackwardArgs)
			for name, x := range map[string]*attention.Tensor{"DQ": &some.DQ, "DK": &some.DK, "DV": &some.DV, "DBias": &some.DBias} {
				if name != only {
					*x = attention.Tensor{}
				}
			}
			if only != "DSinks" {
				some.DSinks = attention.Vector{}
			}
			d.run(t, cfg, some)
			require.Equal(t, outputsOf(&all)[only], outputsOf(&some)[only], "%s alone, %v", only, access)
		}
	}
}

// With Accumulate dQ, dK and dV are added to what the outputs hold. Rows past the end of a
// sequence keep it.
func TestBackwardAccumulates(t *testing.T) {
	d := newBackwardDevice(t)
	for i, row := range backwardTable {
		if row.name != "gaps between rows" && row.name != "padded sequences" && row.name != "packed sequences" && row.name != "sinks" {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			layout := row.layout
			if layout == "" {
				layout = "BHSD"
			}
			c := newBackward(row.cfg, row.shape, layoutsByName[layout], uint64(i))
			if row.set != nil {
				row.set(t, c)
			}
			c.giveOutputs(t)
			held := func(x attention.Tensor, ofKeys bool, dim int) {
				for _, e := range c.elements(t, "", x, ofKeys, dim, nil) {
					e.set(float32(c.rng.IntN(1023)-511) / 256)
				}
			}
			held(c.DQ, false, c.cfg.HeadDim)
			held(c.DK, true, c.cfg.HeadDim)
			held(c.DV, true, c.cfg.ValueDim())
			c.Accumulate = true
			want := c.existing(t, c.run(t))
			before := copyOf(c.BackwardArgs)
			d.run(t, c.cfg, c.BackwardArgs)
			got := c.storedGradients(t)
			for i, e := range want {
				require.InDelta(t, e.got, got[i], 1e-5*(1+math.Abs(e.got)), "%v", e)
			}
			for _, e := range c.elements(t, "", c.DQ, false, c.cfg.HeadDim, nil) {
				e.set(float32(math.NaN()))
			}
			for _, e := range c.elements(t, "", before.DQ, false, c.cfg.HeadDim, nil) {
				e.set(float32(math.NaN()))
			}
			require.Equal(t, before.DQ.Host, c.DQ.Host, "memory outside of the rows was written")
		})
	}
}

// The bits are the same in every run, into the same outputs, while garbage is collected all
// the time.
func TestBackwardRepeats(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	d := newBackwardDevice(t)
	c := manyOptions(t)
	u := d.upload(t, c.BackwardArgs)
	op := d.op(t, c.cfg)
	require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
	var first [][]byte
	runs := 100
	if level := testlevel.Get(); level == testlevel.All || level == testlevel.Exhaustive {
		runs = 1000
	}
	for run := range runs {
		require.NoError(t, d.stream.Barrier())
		require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
		require.NoError(t, d.stream.Barrier())
		var now [][]byte
		for i, b := range u.buffers {
			now = append(now, make([]byte, len(u.hosts[i])))
			require.NoError(t, d.stream.Download(context.Background(), now[i], b, 0))
		}
		if run%10 == 0 {
			runtime.GC()
		}
		if first == nil {
			first = now
		}
		require.Equal(t, first, now, "run %d", run)
	}
	for _, b := range u.buffers {
		require.NoError(t, b.Close())
	}
}

// Backward can be recorded into commands of the caller's.
func TestRecordBackward(t *testing.T) {
	d := newBackwardDevice(t)
	c := manyOptions(t)
	want := copyOf(c.BackwardArgs)
	d.run(t, c.cfg, want)
	u := d.upload(t, c.BackwardArgs)
	op := d.op(t, c.cfg)
	require.NoError(t, op.Record(d.stream.Commands, u.Args))
	require.NoError(t, d.stream.Barrier())
	require.NoError(t, op.RecordBackward(d.stream.Commands, u.BackwardArgs))
	u.download(t, d)
	require.Equal(t, outputsOf(&want), outputsOf(&c.BackwardArgs))

	require.ErrorIs(t, op.RecordBackward(nil, u.BackwardArgs), attention.ErrInvalid)
	require.ErrorIs(t, op.Backward(attention.OnStream(&vk.Stream{}), u.BackwardArgs), attention.ErrInvalid)
}

// A device with few push constants reads the parameters from a buffer, and one with little
// shared memory and few invocations has a tile too.
func TestBackwardOnASmallDevice(t *testing.T) {
	d := newBackwardDevice(t)
	c := manyOptions(t)
	want := copyOf(c.BackwardArgs)
	d.run(t, c.cfg, want)
	small := newBackwardDevice(t)
	limits := &small.dev.Caps().Limits
	limits.MaxPushConstantBytes, limits.MaxInvocations, limits.MaxSharedBytes = 128, 128, 16<<10
	plan, err := small.op(t, c.cfg).PlanBackward(c.Shape)
	require.NoError(t, err)
	require.Equal(t, attention.AccessDescriptors, plan.Access)
	for _, k := range plan.Kernels {
		require.LessOrEqual(t, k.SharedBytes, uint64(16<<10), k.Kernel)
	}
	require.Equal(t, "backward_scalar_q_ssbo", plan.Kernels[2].Kernel)
	got := copyOf(c.BackwardArgs)
	small.run(t, c.cfg, got)
	c.BackwardArgs = want
	wanted := c.storedGradients(t)
	c.BackwardArgs = got
	for i, x := range c.storedGradients(t) { // another tile, another order of sums
		require.InDelta(t, wanted[i], x, 1e-5*(1+math.Abs(float64(wanted[i]))))
	}
	for _, cfg := range []attention.Config{{HeadDim: 256}, {HeadDim: 192, HeadDimV: 128}, {HeadDim: 1}} {
		_, err := small.op(t, cfg).PlanBackward(attention.Shape{B: 1, Hq: 2, Sq: 100, Sk: 100})
		require.NoError(t, err, "%v", cfg)
	}
}

func TestBackwardRefuses(t *testing.T) {
	d := newBackwardDevice(t)
	refuse := func(name string, change func(cfg *attention.Config, a *attention.BackwardArgs), matches error, says string) {
		t.Run(name, func(t *testing.T) {
			c := newBackward(two, small, attention.BHSD, 1)
			c.giveOutputs(t)
			u := d.upload(t, c.BackwardArgs)
			defer func() {
				for _, b := range u.buffers {
					require.NoError(t, b.Close())
				}
			}()
			cfg := c.cfg
			change(&cfg, &u.BackwardArgs)
			op := testdevices.Op(t, attention.On(d.dev), cfg)
			err := op.Backward(attention.OnStream(d.stream), u.BackwardArgs)
			require.ErrorIs(t, err, matches)
			require.ErrorContains(t, err, says)
			_, planned := op.PlanBackwardFor(u.BackwardArgs)
			require.ErrorIs(t, planned, matches)
			require.ErrorIs(t, op.PrepareBackwardFor(u.BackwardArgs), matches)
		})
	}
	type cfg = attention.Config
	type args = attention.BackwardArgs
	for _, x := range []struct {
		name    string
		change  func(cfg *cfg, a *args)
		matches error
		says    string
	}{
		{"pages", func(_ *cfg, a *args) {
			a.Pages = &attention.Pages{Table: attention.Vector{Buffer: a.DQ.Buffer}, PageSize: 7, Count: 2}
			a.K.Offset, a.V.Offset = 0, 0
		}, attention.ErrUnsupported, "Pages"},
		{"quantized K and V", func(cfg *cfg, a *args) {
			cfg.KeyType, cfg.ValueType = attention.KVInt8, attention.KVInt8
			a.KScale, a.VScale = attention.Vector{Buffer: a.DK.Buffer}, attention.Vector{Buffer: a.DK.Buffer}
		}, attention.ErrUnsupported, "int8"},
		{"head dims above 256", func(cfg *cfg, a *args) {
			*cfg = attention.Config{HeadDim: 320, HeadDimV: 256, DType: attention.F16}
			a.Shape = attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}
			for _, x := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.DO, &a.DQ, &a.DK, &a.DV, &a.LSE, &a.DLSE} {
				b := testdevice.Buffer(t, d.dev, 1024)
				*x = attention.Tensor{Buffer: b}
			}
		}, attention.ErrUnsupported, "320/256"},
		{"no output", func(_ *cfg, a *args) { a.DQ, a.DK, a.DV = attention.Tensor{}, attention.Tensor{}, attention.Tensor{} }, attention.ErrInvalid, "DQ"},
		{"no O", func(_ *cfg, a *args) { a.O = attention.Tensor{} }, attention.ErrInvalid, "O is missing"},
		{"no LSE", func(_ *cfg, a *args) { a.LSE = attention.Tensor{} }, attention.ErrInvalid, "LSE is missing"},
		{"no dO", func(_ *cfg, a *args) { a.DO = attention.Tensor{} }, attention.ErrInvalid, "DO is missing"},
		{"strides of LSE", func(_ *cfg, a *args) { a.LSE.Strides = attention.Strides{Batch: 20, Head: 5} }, attention.ErrInvalid, "LSE.Strides"},
		{"dBias without a bias", func(_ *cfg, a *args) { a.DBias = a.DQ }, attention.ErrInvalid, "DBias"},
		{"dSinks without sinks", func(_ *cfg, a *args) { a.DSinks = attention.Vector{Buffer: a.DQ.Buffer} }, attention.ErrInvalid, "DSinks"},
		{"dQ over Q", func(_ *cfg, a *args) { a.DQ = a.Q }, attention.ErrInvalid, "overlapping Q"},
		{"dK over O", func(_ *cfg, a *args) { a.DK.Buffer = a.O.Buffer }, attention.ErrInvalid, "overlapping O"},
		{"dV over dK", func(_ *cfg, a *args) { a.DV.Buffer = a.DK.Buffer }, attention.ErrInvalid, "overlapping DK"},
		{"dQ over LSE", func(_ *cfg, a *args) { a.LSE = attention.Tensor{Buffer: a.DQ.Buffer} }, attention.ErrInvalid, "overlapping LSE"},
		{"rows of dK overlap", func(_ *cfg, a *args) { a.DK.Strides = attention.Strides{Batch: 50, Head: 25, Seq: 1} }, attention.ErrInvalid, "DK.Strides"},
		{"host memory", func(_ *cfg, a *args) { a.DV = attention.Tensor{Host: make([]byte, 4096)} }, attention.ErrInvalid, "DV"},
		{"too little memory", func(_ *cfg, a *args) { a.DQ.Offset = 1 << 20 }, attention.ErrInvalid, "DQ"},
		{"Accumulate of nothing", func(_ *cfg, a *args) {
			a.Accumulate, a.DQ, a.DK, a.DV = true, attention.Tensor{}, attention.Tensor{}, attention.Tensor{}
		}, attention.ErrInvalid, "Accumulate"},
	} {
		refuse(x.name, x.change, x.matches, x.says)
	}
}

// A plan names what it runs, and why not the better tiers.
func TestBackwardPlans(t *testing.T) {
	d := newBackwardDevice(t)
	s := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 100, Sk: 130}
	op, err := attention.New(attention.On(d.dev), attention.Config{DType: attention.F32, HeadDim: 64, Softcap: 3})
	require.NoError(t, err)
	plan, err := op.PlanBackward(s)
	require.NoError(t, err)
	require.Equal(t, attention.TierScalar, plan.Tier)
	require.EqualValues(t, 16*s.Rows(), plan.ScratchBytes)
	forward, err := op.Plan(s)
	require.NoError(t, err)
	require.InEpsilon(t, 2.5*float64(forward.Flops), float64(plan.Flops), 1e-9)
	var outputs []string
	for _, k := range plan.Kernels {
		outputs = append(outputs, k.Outputs)
		require.NotZero(t, k.Workgroups, k.Outputs)
	}
	require.Equal(t, []string{"stats", "LSE", "dQ", "dK dV"}, outputs)
	require.Len(t, plan.Rejected, 2)
	require.Equal(t, attention.TierCoopMat2, plan.Rejected[0].Tier)
	require.Contains(t, plan.String(), "not coopmat: ")
	require.NoError(t, op.PrepareBackward(s))
	require.NoError(t, op.Close())
	_, err = op.PlanBackward(s)
	require.ErrorIs(t, err, vk.ErrClosed)
	require.ErrorIs(t, op.PrepareBackward(s), vk.ErrClosed)
	require.ErrorIs(t, op.Backward(attention.OnStream(d.stream), attention.BackwardArgs{}), vk.ErrClosed)
	require.ErrorIs(t, op.RecordBackward(d.stream.Commands, attention.BackwardArgs{}), vk.ErrClosed)
	var none *attention.Op
	_, err = none.PlanBackward(s)
	require.ErrorIs(t, err, attention.ErrInvalid)

	for _, r := range attention.TierReport(d.dev) {
		if r.Tier == attention.TierCoopMat && r.DType != attention.F32 && r.Available {
			op, err := attention.New(attention.On(d.dev), attention.Config{DType: r.DType, HeadDim: 64, Tier: attention.TierCoopMat})
			require.NoError(t, err)
			plan, err := op.PlanBackward(s)
			require.NoError(t, err)
			require.Equal(t, attention.TierCoopMat, plan.Tier)
			require.Empty(t, plan.Rejected)
			require.NoError(t, op.Close())
		}
	}
}
