package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/inputs"
	"vkattn/internal/testlevel"
)

// faultyNear fails a rank at a step of a Decode.
type faultyNear struct {
	*inProcess
	step string
	fail func() error
}

// The steps of a Decode in which ranks wait for one another.
const (
	stepAnnounce = "announce"
	stepAgree    = "agree"
	stepGather   = "gather"
)

func (f *faultyNear) at(step string) error {
	if f.step != step {
		return nil
	}
	return f.fail()
}

func (f *faultyNear) Announce(mine []byte) (func(context.Context) ([][]byte, error), error) {
	if err := f.at(stepAnnounce); err != nil {
		return nil, err
	}
	wait, err := f.inProcess.Announce(mine)
	return func(ctx context.Context) ([][]byte, error) {
		if err := f.at(stepAgree); err != nil {
			return nil, err
		}
		return wait(ctx)
	}, err
}

func (f *faultyNear) GatherNear(ctx context.Context, parts [][][]byte) error {
	if err := f.at(stepGather); err != nil {
		return err
	}
	return f.inProcess.GatherNear(ctx, parts)
}

// faultyGroups makes groups of which one has a fault at a step, from when arm is called on. Calls before may
// compile pipelines, for which no rank is named.
func faultyGroups(t *testing.T, ranks, bad int, step, fault string) (groups []*Group, arm func()) {
	groups = ranksOf(t, ranks)
	f := &faultyNear{inProcess: groups[bad].t.(*inProcess)}
	f.fail = func() error { return rankFaults[fault].fail(groups[bad], f.ended) }
	groups[bad].t = f
	return groups, func() {
		f.step = step
		for r, g := range groups {
			if r != bad && fault == "hangs" { // then all that they wait for is that rank
				g.timeout = 400 * time.Millisecond
			}
		}
	}
}

// A rank that dies, hangs or fails in any step of a Decode ends it on every other rank with an error that
// names it.
func TestFaultsInDecode(t *testing.T) {
	testlevel.HostOnly(t)
	const ranks, bad = 3, 1
	for fault, x := range rankFaults {
		for _, step := range []string{stepAnnounce, stepAgree, stepGather} {
			t.Run(fmt.Sprintf("%s at %s", fault, step), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					groups, arm := faultyGroups(t, ranks, bad, step, fault)
					arm()
					cfg := Config{Config: attention.Config{HeadDim: 8}}
					requireNamed(t, onAll(groups, func(r int, g *Group) error {
						op, err := New(g, nil, cfg)
						require.NoError(t, err)
						in := func(n int) attention.Tensor {
							return attention.Tensor{Host: inputs.New(int64(8*n), cfg.DType, inputs.Normal, 1)}
						}
						err = op.Decode(context.Background(), nil, DecodeArgs{B: 1, Hq: 2, Hkv: 1, Sq: 1, Tokens: []int{150}, Q: in(2),
							Cache: Cache{K: in(64), V: in(64), Capacity: 64}, O: in(2)})
						require.NoError(t, op.Close())
						require.Error(t, g.Barrier(context.Background()))
						return err
					}), bad, x.want)
				})
			})
		}
	}
}

// So does one whose calls are recorded. Its stream is idle then, and its recordings can be closed.
func TestFaultsInRecordedDecode(t *testing.T) {
	const ranks, bad = 2, 1
	dev, streams := openRanks(t, ranks)
	for fault, x := range rankFaults {
		for _, step := range []string{stepAnnounce, stepAgree, stepGather} {
			t.Run(fmt.Sprintf("%s at %s", fault, step), func(t *testing.T) {
				groups, arm := faultyGroups(t, ranks, bad, step, fault)
				list := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{150}})
				for r, err := range onAll(groups, func(r int, _ *Group) error {
					return errors.Join(list[r].op.Decode(context.Background(), attention.OnStream(list[r].s), list[r].DecodeArgs),
						list[r].op.Decode(context.Background(), attention.OnStream(list[r].s), list[r].DecodeArgs))
				}) {
					require.NoError(t, err, "rank %d", r)
					require.Equal(t, 1, list[r].recordedCalls())
				}
				arm()
				requireNamed(t, onAll(groups, func(r int, _ *Group) error {
					return list[r].op.Decode(context.Background(), attention.OnStream(list[r].s), list[r].DecodeArgs)
				}), bad, x.want)
				for _, y := range list {
					requireIdle(t, y.s)
					for _, recorded := range y.op.recordings.calls {
						require.True(t, y.s.CanReplay(recorded.first))
						require.True(t, y.s.CanReplay(recorded.merge))
					}
					require.NoError(t, y.op.Close())
				}
			})
		}
	}
}

// A rank that cannot begin its work is named by all, and one that cannot take part begins none.
func TestDecodeThatDoesNotBegin(t *testing.T) {
	dev, streams := openRanks(t, 2)
	groups := ranksOf(t, 2)
	list := newDecoders(t, dev, streams, groups, decodeConfig, DecodeArgs{B: 1, Hq: 2, Hkv: 2, Sq: 1, Tokens: []int{150}})
	decode := func() []error {
		return onAll(groups, func(r int, _ *Group) error {
			return list[r].op.Decode(context.Background(), attention.OnStream(list[r].s), list[r].DecodeArgs)
		})
	}
	var before [2][]byte
	for range 3 {
		for _, err := range decode() {
			require.NoError(t, err)
		}
	}
	for r, x := range list {
		var err error
		before[r], err = x.result()
		require.NoError(t, err)
	}
	// Too many tokens for the capacity, of a call that was checked and recorded before.
	for _, x := range list {
		x.Tokens = []int{100_000}
	}
	was, err := streams[1].Timeline().Value()
	require.NoError(t, err)
	for r, err := range decode() {
		require.ErrorContains(t, err, "Capacity", "rank %d", r)
	}
	now, err := streams[1].Timeline().Value()
	require.NoError(t, err)
	require.Equal(t, was, now, "it has begun")
	for r, x := range list {
		after, err := x.result()
		require.NoError(t, err)
		require.True(t, bytes.Equal(before[r], after))
		x.Tokens = []int{150}
	}
	for r, err := range decode() {
		require.NoError(t, err, "rank %d", r)
	}
	// A failure after the check: a tensor is closed meanwhile.
	f := &faultyNear{inProcess: groups[1].t.(*inProcess), step: stepAnnounce}
	f.fail = func() error { return list[1].K.Buffer.Close() }
	groups[1].t = f
	for r, err := range decode() {
		var named *RankError
		require.ErrorAs(t, err, &named, "rank %d", r)
		require.Equal(t, 1, named.Rank)
	}
	for _, x := range list {
		require.NoError(t, x.op.Close())
	}
}
