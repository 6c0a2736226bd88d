package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/inputs"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// decoder is a rank that decodes on a device: an operation with its tensors.
type decoder struct {
	op *Op
	s  *vk.Stream
	DecodeArgs
}

// decodeConfig is that of most decoders here.
var decodeConfig = Config{Config: attention.Config{HeadDim: 16, Tier: attention.TierScalar}}

// newDecoder is the decoder of a group of one rank.
func newDecoder(t *testing.T, args DecodeArgs) *decoder {
	t.Helper()
	dev, streams := openRanks(t, 1)
	return newDecoders(t, dev, streams, ranksOf(t, 1), decodeConfig, args)[0]
}

// newDecoders makes ranks on one device. The cache has random numbers.
func newDecoders(t require.TestingT, dev *vk.Device, streams []*vk.Stream, groups []*Group, cfg Config, a DecodeArgs) []*decoder {
	list := make([]*decoder, len(groups))
	for r, g := range groups {
		op, err := New(g, attention.On(dev), cfg)
		require.NoError(t, err)
		x := &decoder{op, streams[r], a}
		x.Capacity = op.Shard().Count(r, 1000)
		d := &onDevice{t: t, s: streams[r]}
		tensor := func(heads, rows int, seed uint64) (b attention.Tensor) {
			b.Host = inputs.New(int64(a.B*heads*rows*cfg.HeadDim), cfg.DType, inputs.Normal, seed)
			d.tensor(&b, vk.DeviceLocal)
			return b
		}
		x.Q, x.K, x.V = tensor(a.Hq, a.Sq, 1), tensor(a.Hkv, x.Capacity, uint64(10+r)), tensor(a.Hkv, x.Capacity, uint64(20+r))
		x.O = tensor(a.Hq, a.Sq, 2)
		lse := attention.Tensor{Host: make([]byte, 4*a.B*a.Hq*a.Sq)}
		d.tensor(&lse, vk.DeviceLocal)
		x.LSE = lse
		require.NoError(t, x.s.Wait(context.Background()))
		list[r] = x
	}
	return list
}

// result returns O and LSE.
func (x *decoder) result() (all []byte, err error) {
	for _, b := range []*vk.Buffer{x.O.Buffer, x.LSE.Buffer} {
		data := make([]byte, b.Size())
		err = errors.Join(err, x.s.Download(context.Background(), data, b, 0))
		all = append(all, data...)
	}
	return all, err
}

// recordedCalls counts the calls that have recordings.
func (x *decoder) recordedCalls() (n int) {
	for _, r := range x.op.recordings.calls {
		if r.first != nil {
			n++
		}
	}
	return n
}

// requireIdle requires that a call has waited for all of its work in a stream.
func requireIdle(t *testing.T, s *vk.Stream) {
	t.Helper()
	done, err := s.Timeline().Value()
	require.NoError(t, err)
	submitted, err := s.Submit()
	require.NoError(t, err)
	require.Equal(t, submitted, done, "work is under way")
}

// unrecorded computes the calls that follow without recordings, if on.
func (x *decoder) unrecorded(on bool) { x.op.recordings.busy = on }

// Calls that repeat have the bits of calls that were never recorded, while lengths change, and after
// tensors changed.
func TestDecodeRepeats(t *testing.T) {
	dev, streams := openRanks(t, 2)
	for _, x := range []struct {
		ranks  int
		access attention.Access
		split  int // splits of the keys, in scratch memory
	}{{2, attention.AccessAuto, 0}, {2, attention.AccessDescriptors, 0}, {2, attention.AccessAuto, 4}, {1, attention.AccessAuto, 4}} {
		ranks, cfg := x.ranks, Config{Block: 4}
		cfg.HeadDim, cfg.Causal, cfg.Tier, cfg.Access = 16, attention.BottomRight, attention.TierScalar, x.access
		cfg.FixedSplit = x.split
		t.Run(fmt.Sprintf("%d ranks %v split %d", ranks, x.access, x.split), func(t *testing.T) {
			groups := ranksOf(t, ranks)
			list := newDecoders(t, dev, streams, groups, cfg, DecodeArgs{B: 2, Hq: 4, Hkv: 2, Sq: 1})
			for r, err := range onAll(groups, func(r int, _ *Group) error {
				x := list[r]
				defer x.op.Close()
				other := x.O
				d := &onDevice{t: t, s: x.s}
				other.Buffer, other.Host = nil, make([]byte, x.O.Buffer.Size())
				d.tensor(&other, vk.DeviceLocal)
				for i := range 12 {
					if i >= 8 { // another O
						x.O = other
					}
					if i == 5 { // what the stream has recorded comes before
						if err := x.s.Fill(vk.BufferRange{Buffer: x.Q.Buffer}, 0x3c003c00); err != nil {
							return err
						}
					}
					x.Tokens = []int{7 + 50*i, 900 - 60*i}
					var want []byte
					for _, plain := range []bool{true, false} {
						x.unrecorded(plain)
						if err := x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs); err != nil {
							return err
						}
						got, err := x.result()
						if err != nil {
							return err
						}
						if plain {
							want = got
						} else if !bytes.Equal(want, got) {
							return fmt.Errorf("call %d has other bits", i)
						}
					}
					if want := map[bool]int{true: 1}[i >= 1] + map[bool]int{true: 1}[i >= 9]; x.recordedCalls() != want {
						return fmt.Errorf("%d recorded calls after call %d, want %d", x.recordedCalls(), i, want)
					}
				}
				return nil
			}) {
				require.NoError(t, err, "rank %d", r)
			}
			for _, x := range list {
				require.Empty(t, x.op.recordings.calls, "Close has destroyed them")
				require.Zero(t, x.op.recordings.memory)
			}
		})
	}
}

// Lengths that differ are found after the first pass of a recorded call was submitted: the call ends with
// the rank's name, O keeps its bits, and the next call is right.
func TestRecordedDecodeThatDisagrees(t *testing.T) {
	const ranks = 2
	dev, streams := openRanks(t, ranks)
	cfg := Config{Config: attention.Config{HeadDim: 16, Tier: attention.TierScalar}, Block: 4}
	groups := ranksOf(t, ranks)
	list := newDecoders(t, dev, streams, groups, cfg, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 3})
	for r, err := range onAll(groups, func(r int, _ *Group) error {
		x := list[r]
		defer x.op.Close()
		var before []byte
		for i := range 3 {
			x.Tokens = []int{300 + i}
			if err := x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs); err != nil {
				return err
			}
		}
		before, err := x.result()
		if err != nil {
			return err
		}
		submitted := x.s.Timeline()
		was, err := submitted.Value()
		if err != nil {
			return err
		}
		x.Tokens = []int{500 + r}
		err = x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs)
		var named *RankError
		if !errors.As(err, &named) || named.Rank != 1 || !errors.Is(err, ErrMismatch) {
			return fmt.Errorf("ranks that disagree: %w", err)
		}
		if now, err := submitted.Value(); err != nil || now != was+1 {
			return fmt.Errorf("%d submissions in place of the first pass: %w", now-was, err)
		}
		after, err := x.result()
		if err != nil {
			return err
		}
		if !bytes.Equal(before, after) {
			return errors.New("O or LSE has changed")
		}
		x.Tokens = []int{302}
		if err := x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs); err != nil {
			return err
		}
		if after, err = x.result(); err != nil || !bytes.Equal(before, after) {
			return fmt.Errorf("the next call has other bits: %w", err)
		}
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// Recordings keep no tensor of the caller open. A call with a tensor that was closed ends with an
// error, as without them.
func TestRecordedDecodeHoldsNoTensor(t *testing.T) {
	dev, streams := openRanks(t, 1)
	for _, plain := range []bool{true, false} {
		groups := ranksOf(t, 1)
		x := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{300}})[0]
		x.unrecorded(plain)
		for range 3 {
			require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
		}
		require.Equal(t, map[bool]int{false: 1}[plain], x.recordedCalls())
		buffers := dev.Memory().Buffers
		require.NoError(t, x.K.Buffer.Close())
		require.Equal(t, buffers-1, dev.Memory().Buffers)
		require.ErrorContains(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs), "rank 0")
		x.unrecorded(false)
		require.NoError(t, x.op.Close())
	}
}

// An observer of the stream sees the dispatches of every call: calls are not submitted as recordings, nor
// recorded, while a stream is observed.
func TestRecordedDecodeOnAnObservedStream(t *testing.T) {
	dev, streams := openRanks(t, 1)
	if dev.Caps().Limits.TimestampValidBits == 0 {
		t.Skip("the queue has no timestamps")
	}
	groups := ranksOf(t, 1)
	x := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{300}})[0]
	defer x.op.Close()
	for range 3 {
		require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
	}
	want, err := x.result()
	require.NoError(t, err)
	var recorded *vk.Recording
	for _, r := range x.op.recordings.calls {
		recorded = r.first
	}
	seen := 0
	require.NoError(t, x.s.Observe(func(vk.Dispatched) { seen++ }))
	for range 3 {
		before := seen
		require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
		require.GreaterOrEqual(t, seen-before, 2, "the state and the merge")
		got, err := x.result()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, x.s.Observe(nil))
	require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
	for _, r := range x.op.recordings.calls {
		require.Same(t, recorded, r.first, "the recording is used again")
	}
}

// The number of recorded calls is bounded, and a call whose recording is gone is recorded again. Some
// calls of a rank end with another stream.
func TestRecordedDecodesAreBounded(t *testing.T) {
	was := maxRecordings
	maxRecordings = 3
	defer func() { maxRecordings = was }()
	const ranks = 2
	dev, streams := openRanks(t, 2*ranks)
	groups := ranksOf(t, ranks)
	list := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{300}})
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	for r, err := range onAll(groups, func(r int, _ *Group) error {
		x := list[r]
		defer x.op.Close()
		want := map[int][]byte{}
		for i := range 60 {
			layer := i / 4 % 5
			x.s = streams[r+ranks*(i%2)]
			x.K.Offset = int64(layer * 16 * 8)
			x.Capacity = 400
			if err := x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs); err != nil {
				return err
			}
			got, err := x.result()
			if err != nil {
				return err
			}
			if want[layer] == nil {
				want[layer] = got
			}
			if !bytes.Equal(want[layer], got) {
				return fmt.Errorf("call %d has other bits", i)
			}
			if n := len(x.op.recordings.calls); n > 3 {
				return fmt.Errorf("%d recordings", n)
			}
			if i%4 > 0 && x.recordedCalls() == 0 {
				return fmt.Errorf("call %d is not recorded", i)
			}
		}
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// A recording that cannot be submitted any more is made again. If that happens between the two of a call, the
// merge is recorded into the stream. Without memory that ranks share, calls are recorded there too.
func TestStaleRecordingsOfDecode(t *testing.T) {
	const ranks = 2
	dev, streams := openRanks(t, ranks)
	cfg := Config{Config: attention.Config{HeadDim: 16, Tier: attention.TierScalar}, Block: 4}
	groups := ranksOf(t, ranks)
	near := make([]Transport, ranks)
	for r, g := range groups {
		near[r] = g.t
	}
	list := newDecoders(t, dev, streams, groups, cfg, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1})
	entry := func(x *decoder) (only *recorded) {
		require.Len(t, x.op.recordings.calls, 1)
		for _, only = range x.op.recordings.calls {
		}
		return only
	}
	decode := func(tokens int) (outs [][]byte) {
		for _, x := range list {
			x.Tokens = []int{tokens}
		}
		for r, err := range onAll(groups, func(r int, _ *Group) error {
			return list[r].op.Decode(context.Background(), attention.OnStream(list[r].s), list[r].DecodeArgs)
		}) {
			require.NoError(t, err, "rank %d", r)
		}
		for _, x := range list {
			requireIdle(t, x.s)
			out, err := x.result()
			require.NoError(t, err)
			outs = append(outs, out)
		}
		return outs
	}
	want := map[int][][]byte{}
	for r, g := range groups { // no Near
		g.t = &jittered{near[r], rand.New(rand.NewPCG(1, uint64(r)))}
	}
	for tokens := 700; tokens < 707; tokens++ {
		want[tokens] = decode(tokens)
	}
	for r, g := range groups {
		require.Empty(t, list[r].op.recordings.calls)
		g.t = near[r]
	}
	for range 2 {
		require.Equal(t, want[700], decode(700))
	}
	for _, x := range list {
		require.Equal(t, 1, x.recordedCalls())
		require.NoError(t, entry(x).merge.Close())
	}
	require.Equal(t, want[701], decode(701))
	for _, x := range list {
		require.True(t, x.s.CanReplay(entry(x).merge), "it is made again")
	}
	for r, g := range groups {
		f := &faultyNear{inProcess: near[r].(*inProcess), step: stepGather}
		f.fail = func() error { return entry(list[r]).merge.Close() }
		g.t = f
	}
	require.Equal(t, want[702], decode(702))
	for r, g := range groups {
		f := &faultyNear{inProcess: near[r].(*inProcess), step: stepAnnounce}
		f.fail = func() error { return entry(list[r]).first.Close() }
		g.t = f
	}
	require.Equal(t, want[703], decode(703))
	for r, g := range groups {
		g.t = near[r]
	}
	require.Equal(t, want[704], decode(704))
	for _, x := range list {
		require.Equal(t, 1, x.recordedCalls())
		require.NoError(t, entry(x).close())
		entry(x).refused = true
	}
	require.Equal(t, want[705], decode(705))
	require.Equal(t, want[706], decode(706))
	for _, x := range list {
		require.Zero(t, x.recordedCalls(), "a call that cannot be recorded is not tried again")
		require.NoError(t, x.op.Close())
	}
}

// Every field of the arguments is in the key of a recorded call, but for the lengths, which kernels read from
// memory, and for what a Device made a tensor with, which goes with its buffer.
func TestDecodeKeyHasEveryArgument(t *testing.T) {
	testlevel.HostOnly(t)
	for want, x := range map[int]any{9: DecodeArgs{}, 6: Cache{}, 4: attention.Vector{}} {
		require.Equal(t, want, reflect.TypeOf(x).NumField(), "%T has a new field: is it in decodeKey?", x)
	}
	require.Equal(t, 6, reflect.TypeFor[attention.Tensor]().NumField())
	require.Equal(t, 4, reflect.TypeFor[attention.Pages]().NumField())
	transports, err := InProcess(1)
	require.NoError(t, err)
	args := func() *decode {
		d := &decode{near: transports[0].(Near)}
		d.s = &vk.Stream{}
		d.DecodeArgs = DecodeArgs{B: 1, Hq: 4, Hkv: 2, Sq: 1, Tokens: []int{5}, Cache: Cache{Capacity: 8, Pages: &attention.Pages{Stride: 2, PageSize: 4, Count: 3}}}
		return d
	}
	base, ok := args().key(true)
	require.True(t, ok)
	seen := map[decodeKey]string{base: "the base"}
	add := func(name string, change func(d *decode)) {
		d := args()
		change(d)
		key, ok := d.key(true)
		require.True(t, ok, name)
		require.Empty(t, seen[key], "%s is not in the key", name)
		seen[key] = name
	}
	add("B", func(d *decode) { d.B++ })
	add("Hq", func(d *decode) { d.Hq++ })
	add("Hkv", func(d *decode) { d.Hkv++ })
	add("Sq", func(d *decode) { d.Sq++ })
	add("Capacity", func(d *decode) { d.Capacity++ })
	add("no pages", func(d *decode) { d.Pages = nil })
	add("Stride", func(d *decode) { d.Pages.Stride++ })
	add("PageSize", func(d *decode) { d.Pages.PageSize++ })
	add("Count", func(d *decode) { d.Pages.Count++ })
	for name, at := range map[string]func(d *decode) *attention.Tensor{"Q": func(d *decode) *attention.Tensor { return &d.Q }, "K": func(d *decode) *attention.Tensor { return &d.K },
		"V": func(d *decode) *attention.Tensor { return &d.V }, "O": func(d *decode) *attention.Tensor { return &d.O }, "LSE": func(d *decode) *attention.Tensor { return &d.LSE }} {
		add(name, func(d *decode) { at(d).Buffer = &vk.Buffer{} })
		add(name+".Offset", func(d *decode) { at(d).Offset = 1 })
		add(name+".Strides.Batch", func(d *decode) { at(d).Strides.Batch = 1 })
		add(name+".Strides.Head", func(d *decode) { at(d).Strides.Head = 1 })
		add(name+".Strides.Seq", func(d *decode) { at(d).Strides.Seq = 1 })
	}
	for name, at := range map[string]func(d *decode) *attention.Vector{"KScale": func(d *decode) *attention.Vector { return &d.KScale },
		"VScale": func(d *decode) *attention.Vector { return &d.VScale }, "Table": func(d *decode) *attention.Vector { return &d.Pages.Table }} {
		add(name, func(d *decode) { at(d).Buffer = &vk.Buffer{} })
		add(name+".Offset", func(d *decode) { at(d).Offset = 1 })
	}
	for name, change := range map[string]func(d *decode){
		"several rows under a causal mask": func(d *decode) { d.Sq, d.cfg.Causal = 2, attention.BottomRight },
		"a tensor in host memory":          func(d *decode) { d.V.Host = []byte{0} },
		"a vector in host memory":          func(d *decode) { d.Pages.Table.Host = []byte{0} },
		"no shared memory of the host":     func(d *decode) { d.near = nil },
		"no device":                        func(d *decode) { d.s = nil },
	} {
		d := args()
		change(d)
		_, ok := d.key(true)
		require.False(t, ok, name)
	}
	_, ok = args().key(false)
	require.False(t, ok, "another call uses the recordings")
	d := args()
	d.Tokens = []int{7}
	again, ok := d.key(true)
	require.True(t, ok)
	require.Equal(t, base, again)
}

// Calls of all sizes share the memory of states: it is bounded by twice that of the largest call.
func TestRecordedDecodesShareMemory(t *testing.T) {
	dev, streams := openRanks(t, 1)
	groups := ranksOf(t, 1)
	const most = 9
	x := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: most, Hq: 2, Hkv: 2, Sq: 1})[0]
	want := map[int][]byte{}
	for _, round := range []string{"plain", "recorded", "again"} {
		x.unrecorded(round == "plain")
		for b := 1; b <= most; b++ {
			x.B, x.Tokens = b, slices.Repeat([]int{100 * b}, b)
			for range 3 {
				require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
			}
			got, err := x.result()
			require.NoError(t, err)
			got = slices.Concat(got[:b*2*16*2], got[most*2*16*2:][:b*2*4]) // of the sequences of this call
			if round == "plain" {
				want[b] = got
			}
			require.True(t, bytes.Equal(want[b], got), "%s, batch size %d", round, b)
		}
	}
	require.Equal(t, most, x.recordedCalls(), "the largest call came last in the round before")
	var held uint64
	for _, b := range x.op.recordings.memory {
		held += b.Size()
	}
	require.LessOrEqual(t, held, uint64(2*most*(2*(16+1)*4+4)))
	buffers := dev.Memory().Buffers
	require.NoError(t, x.op.Close())
	require.LessOrEqual(t, dev.Memory().Buffers, buffers-3)
}

// ObserveDecode gets the steps of a call, whose times add up to it.
func TestObserveDecode(t *testing.T) {
	x := newDecoder(t, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{300}})
	defer x.op.Close()
	for range 3 {
		var names []string
		var sum time.Duration
		x.op.ObserveDecode(func(s DecodeStep) {
			names = append(names, s.Name)
			sum += s.Took
			require.Equal(t, strings.HasPrefix(s.Name, "wait"), s.Polls > 0, s.Name)
		})
		begin := time.Now()
		require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
		require.False(t, begin.Add(sum).After(time.Now()), "the steps take more than the call")
		require.Equal(t, []string{"check", "submit", "agree", "prepare the merge", "wait for the state", "gather", "submit the merge",
			"wait for the merge", "end"}, names)
	}
	x.op.ObserveDecode(nil)
	require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
}

// BenchmarkDecode is a call of one rank over few tokens: next to no time of a GPU. The metrics are medians
// of the steps in which the device waits for the host.
func BenchmarkDecode(b *testing.B) {
	dev := testdevice.Open(b)
	streams := []*vk.Stream{testdevice.Stream(b, dev, "")}
	for name, plain := range map[string]bool{"recorded": false, "plain": true} {
		b.Run(name, func(b *testing.B) {
			groups := ranksOf(b, 1)
			x := newDecoders(b, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{8}})[0]
			x.unrecorded(plain)
			took := map[string][]time.Duration{"check": nil, "submit": nil, "prepare the merge": nil, "submit the merge": nil, "end": nil}
			for step := range took {
				took[step] = make([]time.Duration, 0, b.N)
			}
			x.op.ObserveDecode(func(s DecodeStep) {
				if list, ok := took[s.Name]; ok {
					took[s.Name] = append(list, s.Took)
				}
			})
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				require.NoError(b, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
			}
			for step, list := range took {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Nanoseconds()), strings.ReplaceAll(step, " ", "-")+"-ns")
			}
			x.unrecorded(false)
			require.NoError(b, x.op.Close())
		})
	}
}

// Close during calls that use recordings: the call under way ends, later ones are refused, and nothing is
// left.
func TestCloseDuringRecordedDecodes(t *testing.T) {
	x := newDecoder(t, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{300}})
	for range 3 {
		require.NoError(t, x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs))
	}
	begun, ended := make(chan struct{}, 1), make(chan error)
	go func() {
		for {
			if err := x.op.Decode(context.Background(), attention.OnStream(x.s), x.DecodeArgs); err != nil {
				ended <- err
				return
			}
			select {
			case begun <- struct{}{}:
			default:
			}
		}
	}()
	<-begun
	require.NoError(t, x.op.Close())
	require.ErrorIs(t, <-ended, vk.ErrClosed)
	require.Empty(t, x.op.recordings.calls)
	require.NoError(t, x.s.Wait(context.Background()))
}
