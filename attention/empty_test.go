package attention_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// emptyCall is a call of two sequences, three rows and four keys each, with sinks, a bias of all
// batches and every gradient, whose outputs hold NaN.
func emptyCall(dtype attention.DType) (attention.Config, attention.BackwardArgs) {
	const hq, dim, rows, keys = 4, 8, 2 * 3, 2 * 4
	encode := func(n int, of func(i int) float32) []byte {
		x, b := make([]float32, n), make([]byte, n*dtype.Size())
		for i := range x {
			x[i] = of(i)
		}
		dtype.Encode(b, x)
		return b
	}
	numbers := func(n int) []byte { return encode(n, func(i int) float32 { return float32(i%7-3) / 4 }) }
	unwritten := func(n int) []byte { return encode(n, func(int) float32 { return float32(math.NaN()) }) }
	var a attention.BackwardArgs
	a.Shape = attention.Shape{B: 2, Hq: hq, Hkv: 2, Sq: 3, Sk: 4}
	a.Q.Host, a.DO.Host = numbers(rows*hq*dim), numbers(rows*hq*dim)
	a.K.Host, a.V.Host = numbers(keys*2*dim), numbers(keys*2*dim)
	a.O.Host, a.LSE.Host, a.DQ.Host = unwritten(rows*hq*dim), nans(rows*hq), unwritten(rows*hq*dim)
	a.DK.Host, a.DV.Host = unwritten(keys*2*dim), unwritten(keys*2*dim)
	a.Sinks, a.DSinks.Host = vectorF32(0.5, -1, 2, 0), nans(hq)
	a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: numbers(hq * 3 * 4)}, DType: dtype, Batches: 1}
	a.DBias.Host = nans(hq * 3 * 4)
	return attention.Config{HeadDim: dim, DType: dtype}, a
}

// emptyCase changes a call to one without keys, without rows or without sequences.
type emptyCase struct {
	name string
	set  func(c *attention.Config, a *attention.BackwardArgs)
	want map[string]float32 // of all elements of an output; without gradients Backward is not called
}

// backward reports whether the case has gradients.
func (x *emptyCase) backward() bool { _, ok := x.want["DQ"]; return ok }

func emptyCases() []emptyCase {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	type wants = map[string]float32
	noKeys, noRows := wants{"O": 0, "LSE": inf, "DQ": 0, "DK": nan, "DV": nan, "DBias": 0}, wants{"O": nan, "LSE": nan, "DQ": nan, "DK": 0, "DV": 0, "DSinks": 0, "DBias": 0}
	noSequences := wants{"O": nan, "LSE": nan, "DQ": nan, "DK": nan, "DV": nan, "DSinks": 0, "DBias": 0}
	noSinks := func(a *attention.BackwardArgs) { a.Sinks, a.DSinks = attention.Vector{}, attention.Vector{} }
	noPages := func(a *attention.BackwardArgs) {
		noSinks(a)
		a.Pages = &attention.Pages{Table: vectorI32(0, 0, 0, 0), PageSize: 2}
	}
	return []emptyCase{
		{"no packed keys", func(_ *attention.Config, a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 0, 0)}
		}, wants{"O": 0, "DQ": 0, "DK": nan, "DV": nan, "DSinks": 0, "DBias": 0}},
		{"no packed keys, no sinks", func(_ *attention.Config, a *attention.BackwardArgs) {
			noSinks(a)
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 0, 0)}
		}, noKeys},
		{"wrong lengths of no packed keys", func(_ *attention.Config, a *attention.BackwardArgs) {
			noSinks(a)
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 3, 4), UsedK: vectorI32(4, 4)}
		}, noKeys},
		{"no packed rows", func(_ *attention.Config, a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuQ: vectorI32(0, 0, 0)}
		}, noRows},
		{"no packed rows or keys", func(_ *attention.Config, a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuQ: vectorI32(0, 0, 0), CuK: vectorI32(0, 0, 0)}
		}, noSequences},
		{"no sequences", func(_ *attention.Config, a *attention.BackwardArgs) {
			a.B = 0
		}, noSequences},
		{"no sequences of packed rows and keys", func(_ *attention.Config, a *attention.BackwardArgs) {
			a.B, a.Varlen = 0, &attention.Varlen{CuQ: vectorI32(0), CuK: vectorI32(0), TotalQ: 6, TotalK: 8}
		}, noSequences},
		{"no tokens", func(_ *attention.Config, a *attention.BackwardArgs) {
			noSinks(a)
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorI32(0, 0, 0, 0, 0), Tokens: attention.Vector{Host: make([]byte, 4)}}
		}, wants{"O": 0, "LSE": inf, "DQ": 0, "DK": 0, "DV": 0, "DBias": 0}},
		{"wrong offsets of no tokens", func(_ *attention.Config, a *attention.BackwardArgs) {
			noSinks(a)
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorI32(0, 1, 2, 3, 4), Tokens: attention.Vector{Host: make([]byte, 4)}}
		}, wants{"O": 0, "LSE": inf, "DQ": 0, "DK": 0, "DV": 0, "DBias": 0}},
		{"no pages", func(_ *attention.Config, a *attention.BackwardArgs) {
			noPages(a)
			a.Varlen = &attention.Varlen{UsedK: vectorI32(4, 3)}
		}, wants{"O": 0, "LSE": inf}},
		{"no pages, one row", func(_ *attention.Config, a *attention.BackwardArgs) {
			noPages(a)
			a.Sq, a.Bias = 1, nil
			a.O.Host, a.LSE.Host = a.O.Host[:len(a.O.Host)/3], a.LSE.Host[:len(a.LSE.Host)/3]
		}, wants{"O": 0, "LSE": inf}},
		{"no pages of a split call", func(c *attention.Config, a *attention.BackwardArgs) {
			noPages(a)
			c.FixedSplit = 2
		}, wants{"O": 0, "LSE": inf}},
		{"no packed keys of a split call", func(c *attention.Config, a *attention.BackwardArgs) {
			noSinks(a)
			c.FixedSplit, a.Varlen = 2, &attention.Varlen{CuK: vectorI32(0, 0, 0)}
		}, wants{"O": 0, "LSE": inf}},
		{"no pages of tokens", func(_ *attention.Config, a *attention.BackwardArgs) {
			noPages(a)
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorI32(0, 1, 2, 3, 4), Tokens: vectorI32(0, 1, 2, 3), Total: 4}
		}, wants{"O": 0, "LSE": inf}},
		{"no pages of scaled keys", func(c *attention.Config, a *attention.BackwardArgs) {
			noPages(a)
			c.KeyType, c.ValueType, a.KScale, a.VScale = attention.KVInt8, attention.KVInt8, vectorF32(1), vectorF32(1)
		}, wants{"O": 0, "LSE": inf}},
	}
}

// check compares O and LSE of a call, and its gradients if it has computed them.
func (x *emptyCase) check(t *testing.T, dtype attention.DType, a *attention.BackwardArgs, gradients bool) {
	outputs := map[string][]byte{}
	if gradients {
		outputs = outputsOf(a)
	}
	outputs["O"], outputs["LSE"] = a.O.Host, a.LSE.Host
	for name, want := range x.want {
		of := dtype
		if name == "LSE" || name == "DBias" || name == "DSinks" {
			of = attention.F32
		}
		got := make([]float32, len(outputs[name])/of.Size())
		of.Decode(got, outputs[name])
		for i, y := range got {
			if !(y == want || y != y && want != want) {
				t.Errorf("element %d of %s is %v, want %v", i, name, y, want)
				break
			}
		}
	}
}

// verify computes the references of a call, and judges it.
func (x *emptyCase) verify(t *testing.T, cfg attention.Config, a attention.BackwardArgs) {
	_, _, err := attention.Reference(cfg, a.Args)
	require.NoError(t, err)
	_, err = tensors.ExistingRows(a.Args)
	require.NoError(t, err)
	v, err := accuracy.Verify(problem.Config(cfg), a.Args, accuracy.Options{})
	require.NoError(t, err)
	require.True(t, v.Pass(), "%v", v)
	if !x.backward() {
		return
	}
	_, err = attention.ReferenceBackward(cfg, a)
	require.NoError(t, err)
	b, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{})
	require.NoError(t, err)
	require.True(t, b.Pass(), "%v", b)
}

// run computes a case with a tier of a device.
func (x *emptyCase) run(t *testing.T, d *backwardDevice, tier attention.Tier, dtype attention.DType, access attention.Access) {
	if caps := d.dev.Caps(); access == attention.AccessAddresses && (!caps.BufferDeviceAddress || caps.Limits.MaxPushConstantBytes < 256) {
		t.Skip("no addresses")
	}
	cfg, a := emptyCall(dtype)
	x.set(&cfg, &a)
	cfg.Tier, cfg.Access, cfg.Tuning = tier, access, attention.TuningOff
	op, err := attention.New(attention.On(d.dev), cfg)
	require.NoError(t, err)
	d.keep(op)
	u := d.upload(t, a)
	_, err = op.PlanFor(u.Args)
	require.NoError(t, err)
	require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
	gradients := x.backward() && (tier == attention.TierScalar || a.SparseTokens == nil) // which the coopmat tiers refuse
	if gradients {
		_, err = op.PlanBackwardFor(u.BackwardArgs)
		require.NoError(t, err)
		require.NoError(t, d.stream.Barrier())
		require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
	}
	u.download(t, d)
	x.check(t, dtype, &a, gradients)
}

// Calls without keys, without rows or without sequences are calls: rows attend to nothing, and
// what rows and keys there are have a gradient of 0.
func TestCallsOfNothing(t *testing.T) {
	for i, x := range emptyCases() {
		t.Run(x.name, func(t *testing.T) {
			t.Run("cpu", func(t *testing.T) {
				cfg, a := emptyCall(attention.F32)
				x.set(&cfg, &a)
				op, err := attention.New(nil, cfg)
				require.NoError(t, err)
				if strings.HasPrefix(x.name, "wrong ") { // in host memory it is refused
					require.ErrorIs(t, op.Forward(nil, a.Args), attention.ErrInvalid)
					require.ErrorIs(t, op.Backward(nil, a), attention.ErrInvalid)
					return
				}
				require.NoError(t, op.Forward(nil, a.Args))
				if x.backward() {
					require.NoError(t, op.Backward(nil, a))
				}
				x.check(t, attention.F32, &a, true)
				x.verify(t, cfg, a)
			})
			for n, access := range []attention.Access{attention.AccessAddresses, attention.AccessDescriptors} {
				if !testlevel.Share((i+n)%2 == 0) {
					continue
				}
				t.Run(access.String(), func(t *testing.T) {
					x.run(t, newBackwardDevice(t), attention.TierScalar, attention.F32, access)
				})
			}
		})
	}
}

// TestCallsOfNothing on the coopmat tiers.
func TestCallsOfNothingOnMatrices(t *testing.T) {
	if !testlevel.Share(false) {
		t.Skip("a driver on the CPU compiles for a minute: make test-full runs it")
	}
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier != attention.TierCoopMat && r.Tier != attention.TierCoopMat2 {
			continue
		}
		if r.Tier == attention.TierCoopMat2 && testlevel.Get() == testlevel.Full {
			continue // its kernels are the same here, and compile for three minutes
		}
		for i, x := range emptyCases() {
			if testlevel.Get() == testlevel.Full && i%3 != 0 {
				continue // a pipeline each, of some seconds: GPUs run all
			}
			t.Run(r.Tier.String()+"/"+x.name, func(t *testing.T) { x.run(t, d, r.Tier, attention.F16, attention.AccessAuto) })
		}
	}
}

// onEach runs a test on the CPU tier and, with each access, on the device.
func onEach(t *testing.T, run func(t *testing.T, d *backwardDevice, access attention.Access)) {
	t.Run("cpu", func(t *testing.T) { run(t, nil, attention.AccessAuto) })
	for _, access := range recordTests {
		t.Run(access.String(), func(t *testing.T) {
			d := newBackwardDevice(t)
			if access == attention.AccessAddresses && !d.dev.Caps().BufferDeviceAddress {
				t.Skip("no addresses")
			}
			run(t, d, access)
		})
	}
}

// forwardOf calls an operation with arguments in host memory, on the CPU tier or on the device.
func forwardOf[A any](t *testing.T, d *backwardDevice, forward func(*attention.Stream, A) error, a A) {
	if d == nil {
		require.NoError(t, forward(nil, a))
		return
	}
	var u uploaded
	u.move(t, d, &a)
	require.NoError(t, forward(attention.OnStream(d.stream), a))
	u.download(t, d)
}

// An append of no sequences or rows, or to a cache without pages, leaves the cache as it is. Q is
// rotated without pages too.
func TestAppendOfNothing(t *testing.T) {
	for name, set := range map[string]func(a *kvcache.AppendArgs){
		"sequences": func(a *kvcache.AppendArgs) { a.B = 0 },
		"sequences of packed rows": func(a *kvcache.AppendArgs) {
			a.B, a.CuNew, a.TotalNew, a.New = 0, vectorI32(0), 6, 0
		},
		"packed rows": func(a *kvcache.AppendArgs) { a.CuNew, a.New = vectorI32(0, 0, 0), 0 },
		"pages": func(a *kvcache.AppendArgs) {
			pagedAppend(a)
			a.Pages.Count, a.Shard = 0, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, d *backwardDevice, access attention.Access) {
				cfg, a := goodAppend()
				set(&a)
				cfg.Access = access
				fill := func(b []byte, x byte) []byte {
					for i := range b {
						b[i] = x
					}
					return bytes.Clone(b)
				}
				k, v, q := fill(a.KCache.Host, 7), fill(a.VCache.Host, 8), fill(a.QOut.Host, 9)
				var dev *vk.Device
				if d != nil {
					dev = d.dev
				}
				p, err := kvcache.NewAppend(attention.On(dev), cfg)
				require.NoError(t, err)
				defer func() { require.NoError(t, p.Close()) }()
				forwardOf(t, d, p.Forward, a)
				require.True(t, bytes.Equal(k, a.KCache.Host) && bytes.Equal(v, a.VCache.Host))
				if name == "pages" {
					q = make([]byte, len(q)) // all Q is 0
				}
				require.True(t, bytes.Equal(q, a.QOut.Host))
			})
		})
	}
}

// A merge and a sum of no batches or rows write nothing.
func TestMergeOfNothing(t *testing.T) {
	for name, set := range map[string]func(s *attention.Shape){
		"batches": func(s *attention.Shape) { s.B = 0 },
		"rows":    func(s *attention.Shape) { s.Sq = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, d *backwardDevice, access attention.Access) {
				cfg, a := goodMerge()
				set(&a.Shape)
				cfg.Access, cfg.DType, cfg.F32States = access, attention.F32, true
				a.O.Host, a.LSE.Host = nans(100), nans(100)
				before := bytes.Clone(a.O.Host)
				var dev *vk.Device
				if d != nil {
					dev = d.dev
				}
				m, err := merge.NewMerge(attention.On(dev), cfg)
				require.NoError(t, err)
				defer func() { require.NoError(t, m.Close()) }()
				forwardOf(t, d, m.Forward, a)
				require.True(t, bytes.Equal(before, a.O.Host) && bytes.Equal(before, a.LSE.Host))

				s, err := merge.NewSum(attention.On(dev), cfg)
				require.NoError(t, err)
				defer func() { require.NoError(t, s.Close()) }()
				forwardOf(t, d, s.Forward, merge.SumArgs{Shape: a.Shape, First: a.First.O, Out: a.O})
				require.True(t, bytes.Equal(before, a.O.Host))
			})
		})
	}
}
