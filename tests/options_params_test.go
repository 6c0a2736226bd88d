package tests

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// leastPush is the number of push constant bytes that every device has. The parameters of
// calls with options do not fit; a buffer then holds them.
const leastPush = 128

// narrowed returns the session with a device that reports leastPush. If the device has
// more, its limit is overwritten; the library reads nothing else to decide.
func narrowed(t *testing.T, s *session) *session {
	if s.dev.Caps().Limits.MaxPushConstantBytes <= leastPush {
		return s
	}
	other := *s
	other.dev = anotherDevice(t)
	other.dev.Caps().Limits.MaxPushConstantBytes = leastPush
	return &other
}

// paramCases together use most parameters: packed sequences, pages, lists, biases, masks,
// scales of quantized keys, split keys. Tiers whose kernels compile slowly have one case:
// their parameters are the same.
func paramCases(tt cases.Target) (some []cases.Case) {
	names := []string{"compact-window", "compact-mask", "compact-serving", "compact-sparse"}
	for _, c := range cases.CompactOptions() {
		if i := slices.Index(names, c.Name); i >= 0 {
			names = slices.Delete(names, i, i+1)
			c.Access = attention.AccessDescriptors
			some = append(some, c)
		}
	}
	if fewPipelines() && slowToCompile(tt) {
		turn := int(tt.Tier) % len(some)
		return some[turn : turn+1]
	}
	return some
}

// Parameters in a buffer, with descriptors, give the bits that push constants give, with
// addresses.
func TestOptionsParamsInABuffer(t *testing.T) {
	s := openDevice(t)
	if s.dev.Caps().Limits.MaxPushConstantBytes <= leastPush || !s.dev.Caps().BufferDeviceAddress {
		t.Skip("the device has nothing to compare with")
	}
	narrow := narrowed(t, s)
	for _, tt := range s.available() {
		if tt.DType == attention.F32 || tt.DType == attention.BF16 && tt.Tier == attention.TierScalar || tt.Tier == attention.TierCPU {
			continue // one module for all three storage types
		}
		if which, _ := s.matrixTier(tt); onMatrices(tt) && which > 0 && leftToGPUs(tt) {
			continue // the modules of the coopmat tiers read their parameters by one source
		}
		t.Run(tt.String(), func(t *testing.T) {
			pushed, buffered := s.newEngine(tt), narrow.newEngine(tt)
			for _, c := range paramCases(tt) {
				t.Run(c.Name, func(t *testing.T) {
					p, err := cases.NewProblem(c, tt.DType)
					require.NoError(t, err)
					b := &job{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Image}
					c.Access = attention.AccessAddresses
					a := &job{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Image}
					for _, x := range []struct {
						e      *engine
						j      *job
						module string // general or decode kernel
					}{{pushed, a, "_(general|decode)_bda$"}, {buffered, b, "_(general|decode)_ssbo$"}} {
						require.NoError(t, x.e.run([]*job{x.j}))
						plan, err := x.e.plan(x.j)
						require.NoError(t, err)
						require.Regexp(t, x.module, plan.Kernel)
					}
					require.Equal(t, a.after, b.after)
				})
			}
			require.NoError(t, pushed.close())
			require.NoError(t, buffered.close())
		})
	}
}

// These modules compile on devices that execute nothing.
func TestOptionsParamsCompile(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestOptionsParamsInABuffer")
	}
	narrow := narrowed(t, s)
	for _, tt := range s.available() {
		if tt.DType != attention.F16 {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := narrow.newEngine(tt)
			for _, c := range paramCases(tt) {
				require.NoError(t, e.prepare(c, tt), c.Name)
			}
			require.NoError(t, e.close())
		})
	}
}

// A caller's command buffer keeps the parameters of its call, however late and however
// often it is executed and whatever is recorded meanwhile.
func TestOptionsParamsOfARecordedCall(t *testing.T) {
	s := narrowed(t, openDevice(t))
	c := cases.CompactOptions()[0]
	c.FixedSplit = 3 // a second kernel and scratch memory
	p, err := cases.NewProblem(c, attention.F16)
	require.NoError(t, err)
	op := testdevices.Op(t, attention.On(s.dev), attention.Config(c.Config(scalarF16)))
	stream := testdevice.Stream(t, s.dev, "recorded")
	newCall := func(p *cases.Problem) (buffers []*vk.Buffer, upload func()) {
		buffers = testdevice.Upload(t, stream, p.Image...)
		return buffers, func() {
			for i, b := range p.Image {
				require.NoError(t, stream.Upload(buffers[i], 0, b))
			}
			require.NoError(t, stream.Barrier())
			require.NoError(t, stream.Wait(t.Context()))
		}
	}
	check := func(p *cases.Problem, buffers []*vk.Buffer) {
		t.Helper()
		require.NoError(t, stream.Barrier())
		after := testdevice.Download(t, stream, buffers...)
		var x cases.Truth
		require.NoError(t, x.Judge(p, after))
		require.NoError(t, p.Trespass(p.Image, after))
	}
	buffers, upload := newCall(p)
	recorded := newCallersCommands(t, s.dev)
	commands := recorded.begin(t)
	require.NoError(t, op.Record(commands, p.DeviceArgs(buffers)))
	require.NoError(t, commands.Barrier())
	recorded.end(t)

	// In between, another call with other parameters.
	other := c
	other.Seqs, other.Seed = slices.Clone(c.Seqs[:2]), 77
	q, err := cases.NewProblem(other, attention.F16)
	require.NoError(t, err)
	more, uploadMore := newCall(q)
	for range 3 {
		upload()
		recorded.submit(t)
		check(p, buffers)
		uploadMore()
		require.NoError(t, op.Forward(attention.OnStream(stream), q.DeviceArgs(more)))
		check(q, more)
	}
	require.NoError(t, commands.Release())
}

// Calls that such a device cannot compute are refused with an error of one line.
func TestOptionsParamsRefusals(t *testing.T) {
	openDevice(t)
	dev := anotherDevice(t)
	limits := &dev.Caps().Limits
	limits.MaxPushConstantBytes = leastPush
	shape := attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}
	refused := func(access attention.Access, want string) {
		t.Helper()
		op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 64, Softcap: 30, Tier: attention.TierScalar, Access: access})
		if err == nil {
			_, err = op.Plan(shape)
		}
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
	if dev.Caps().BufferDeviceAddress {
		refused(attention.AccessAddresses, "128 bytes of push constants")
	}
	limits.MaxStorageBuffers = 17
	refused(attention.AccessAuto, "binds 17 buffers, the general kernel takes 18")
}
