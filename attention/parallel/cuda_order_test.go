package parallel

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// lateTransport moves messages only when Wait is called: it is as slow as a transport may be.
type lateTransport struct {
	Transport
	underWay atomic.Int32 // exchanges that have not arrived
}

type lateExchange struct {
	t               *lateTransport
	sends, receives []Transfer
}

func (t *lateTransport) Exchange(sends, receives []Transfer) (Pending, error) {
	t.underWay.Add(1)
	return &lateExchange{t, sends, receives}, nil
}

func (x *lateExchange) Wait(ctx context.Context) error {
	p, err := x.t.Transport.Exchange(x.sends, x.receives)
	if err == nil {
		err = p.Wait(ctx)
	}
	x.t.underWay.Add(-1)
	return err
}

// fakeCUDA is a tier cuda whose launches submit what the stream has recorded, as cudapath's do.
// It computes nothing. It reads K where a kernel would.
type fakeCUDA struct {
	mu        sync.Mutex
	transport map[*vk.Stream]*lateTransport
	wholeK    []byte // nil: a rank has some heads only
	launches  int
	early     []string
}

func (f *fakeCUDA) Check(*vk.DeviceInfo, attention.DType) error { return nil }
func (f *fakeCUDA) Reach(*vk.Buffer) error                      { return nil }
func (f *fakeCUDA) Load() error                                 { return nil }
func (f *fakeCUDA) Choose(*vk.Device, problem.CUDAProblem) (problem.CUDAChoice, error) {
	return problem.CUDAChoice{Kernel: f, Name: "fake", Family: "fa3", Rows: 128, Cols: 64, Workgroups: 1}, nil
}
func (f *fakeCUDA) ChooseBackward(*vk.Device, problem.CUDABackwardProblem) (problem.CUDABackwardChoice, error) {
	return problem.CUDABackwardChoice{}, attention.ErrUnsupported
}

func (f *fakeCUDA) Launch(s *vk.Stream, c *problem.CUDACall) error {
	if err := s.Wait(context.Background()); err != nil { // submits
		return err
	}
	k := c.Tensors[1]
	var got []byte
	for b := range c.B {
		for h := range c.Hkv {
			for row := range c.Sk {
				at := int64(k.Offset) + 2*(int64(b)*k.Batch+int64(h)*k.Head+int64(row)*k.Row)
				got = append(got, k.Buffer.Bytes()[at:][:2*c.HeadDim]...)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.launches++
	if n := f.transport[s].underWay.Load(); n != 0 {
		f.early = append(f.early, fmt.Sprintf("a kernel runs while %d exchanges are under way", n))
	}
	if f.wholeK != nil && !bytes.Equal(got, f.wholeK) {
		f.early = append(f.early, "K is not complete")
	}
	return nil
}

// Kernels of tier cuda run after the keys that they read have arrived, although a launch submits
// what is recorded and nothing on the device waits for messages.
func TestCUDAKernelsFollowWhatArrives(t *testing.T) {
	const ranks = 2
	dev, streams := openRanks(t, ranks)
	for _, order := range []Order{OrderContiguous, OrderStriped} {
		for _, f := range []form{{ModeRing, ScheduleGather}, {ModeAllGather, ScheduleAuto}, {ModeUlysses, ScheduleAuto}} {
			t.Run(fmt.Sprint(order, " ", f.mode), func(t *testing.T) {
				cfg := Config{Mode: f.mode, Schedule: f.schedule, Order: order}
				cfg.HeadDim, cfg.Tier = 16, attention.TierCUDA
				w := newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 80, Sk: 80}}, 5)
				fake := &fakeCUDA{transport: map[*vk.Stream]*lateTransport{}, wholeK: w.K.Host}
				if order == OrderStriped || f.mode == ModeUlysses {
					fake.wholeK = nil // in another order, or some heads
				}
				plan.RegisterCUDA(fake)
				defer plan.RegisterCUDA(nil)
				transports, err := InProcess(ranks)
				require.NoError(t, err)
				groups := make([]*Group, ranks)
				for r := range groups {
					late := &lateTransport{Transport: transports[r]}
					fake.transport[streams[r]] = late
					groups[r], err = NewGroup(late, GroupOptions{Timeout: patience})
					require.NoError(t, err)
				}
				for r, err := range w.onDevices(t, dev, streams, groups, movable, func(r int, x *deviceRank) error {
					return x.op.Forward(context.Background(), attention.OnStream(x.s), x.Args)
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				require.NotZero(t, fake.launches)
				require.Empty(t, fake.early)
			})
		}
	}
}
