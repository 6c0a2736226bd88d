package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// With Config.Check, and with VKATTN_CHECK=1, a number in device memory that is out of its range is the error that it is
// in host memory. Without them the call takes it.
func TestCheckReadsNumbersOnTheDevice(t *testing.T) {
	for _, dev := range testdevices.All(t)[1:] {
		for _, c := range cases.OutOfRange() {
			t.Run(c.Name, func(t *testing.T) {
				p := newOptions(t, c.Of, attention.F32)
				a := argsOn(t, dev, p, p.Changed(c.Wrong))
				cfg := c.Of.Config(cases.Target{Tier: attention.TierScalar, DType: attention.F32})
				call := func(cfg attention.Config) error {
					op := testdevices.Op(t, dev, cfg)
					if err := op.Forward(nil, a); err != nil {
						return err
					}
					return dev.Wait(t.Context())
				}
				require.NoError(t, call(attention.Config(cfg)))
				checked := cfg
				checked.Check = true
				t.Setenv(attention.CheckEnv, "1")
				for _, cfg := range []attention.Config{attention.Config(checked), attention.Config(cfg)} {
					if c.Field == "" {
						require.NoError(t, call(cfg))
						continue
					}
					err := call(cfg)
					require.ErrorIs(t, err, attention.ErrInvalid)
					require.ErrorContains(t, err, c.Field+" is ")
				}
				right := argsOn(t, dev, p, p.Image)
				a = right
				require.NoError(t, call(attention.Config(checked)))
			})
		}
	}
}

// argsOn uploads the memory of a problem and returns the arguments of a call on it.
func argsOn(t *testing.T, dev *attention.Device, p *cases.Problem, image [][]byte) attention.Args {
	t.Helper()
	var buffers []*vk.Buffer
	for _, b := range image {
		buffer := testdevice.Buffer(t, dev.Vulkan(), uint64(len(b)))
		require.NoError(t, dev.Do(func(s *attention.Stream) error { return s.Vulkan().Upload(buffer, 0, b) }))
		buffers = append(buffers, buffer)
	}
	return p.DeviceArgs(buffers)
}

// An append with Check refuses a full cache on a device; one without skips the rows.
func TestCheckRefusesAFullCacheOnTheDevice(t *testing.T) {
	for _, dev := range testdevices.All(t)[1:] {
		rows := func(heads, n int) attention.Tensor {
			x, err := dev.Tensor(attention.F16, 1, heads, n, 8)
			require.NoError(t, err)
			return x
		}
		used, err := dev.Ints(6)
		require.NoError(t, err)
		a := kvcache.AppendArgs{B: 1, Hkv: 2, New: 3, K: rows(2, 3), V: rows(2, 3), KCache: rows(2, 8), VCache: rows(2, 8), Capacity: 8, Used: used}
		for _, check := range []bool{false, true} {
			p, err := kvcache.NewAppend(dev, kvcache.AppendConfig{HeadDim: 8, Check: check})
			require.NoError(t, err)
			err = p.Forward(nil, a)
			if check {
				require.ErrorContains(t, err, "Used[0] is 6, want at least 0, and room for 3 new rows in 8 positions")
				a.Shard = true
				err = p.Forward(nil, a)
			}
			require.NoError(t, err)
			require.NoError(t, dev.Wait(t.Context()))
			require.NoError(t, p.Close())
		}
	}
}

// A caller's command buffer runs later: Record refuses to check what it holds.
func TestCheckCannotRecord(t *testing.T) {
	for _, dev := range testdevices.All(t)[1:] {
		lengths, err := dev.Ints(3)
		require.NoError(t, err)
		a := attention.Args{Varlen: &attention.Varlen{UsedK: lengths}}
		for i, x := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O} {
			*x, _ = drawn(t, dev, uint64(i), 1, 1, 5, 8)
		}
		op, err := attention.New(dev, attention.Config{HeadDim: 8, Check: true})
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, a))
		s, err := dev.Vulkan().NewStream("record")
		require.NoError(t, err)
		require.ErrorIs(t, op.Record(s.Commands, a), attention.ErrUnsupported)
		require.NoError(t, s.Close())
		require.NoError(t, op.Close())
	}
}
