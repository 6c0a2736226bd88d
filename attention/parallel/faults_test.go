package parallel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// faulty fails a rank at one of its operations.
type faulty struct {
	Transport
	at   int32 // Exchange that fails, counted from 0
	fail func() error
	n    atomic.Int32
}

func (f *faulty) Exchange(sends, receives []Transfer) (Pending, error) {
	if f.n.Add(1)-1 == f.at {
		if err := f.fail(); err != nil {
			return nil, err
		}
	}
	return f.Transport.Exchange(sends, receives)
}

// rankFaults are what happens to a rank, and the reason that the others give. ended is closed when the call
// has ended for all.
var rankFaults = map[string]struct {
	fail func(g *Group, ended chan struct{}) error
	want error
}{
	"dies":  {func(g *Group, ended chan struct{}) error { g.Close(); <-ended; return errBoom }, ErrLeft},
	"hangs": {func(_ *Group, ended chan struct{}) error { <-ended; return nil }, ErrTimeout},
	"fails": {func(*Group, chan struct{}) error { return errBoom }, errBoom},
}

var errBoom = errors.New("boom")

// requireNamed requires errors of all ranks that name one of them, for a reason.
func requireNamed(t *testing.T, list []error, bad int, want error) {
	for r, err := range list {
		var named *RankError
		require.ErrorAs(t, err, &named, "rank %d", r)
		require.Equal(t, bad, named.Rank, "rank %d: %v", r, err)
		if r != bad {
			require.ErrorIs(t, err, want, "rank %d", r)
		}
	}
}

// faultyCall is a small call for every mode.
func faultyCall(x form) *whole {
	cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
	cfg.HeadDim, cfg.Causal = 8, attention.TopLeft
	return newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 24, Sk: 24}}, 3)
}

// A rank that dies, hangs or fails in the middle of a call ends it on every other rank with
// an error that names it.
func TestFaultsNameTheRankOnEveryOther(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1) // groups of heads
	const ranks, bad = 4, 2
	for _, form := range forms() {
		for name, x := range rankFaults {
			for _, forward := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v %v %s forward %v", form.mode, form.schedule, name, forward), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { // only a rank that waits for ever sees the timeout
						groups := ranksOf(t, ranks)
						g := groups[bad]
						ended := g.t.(*inProcess).ended
						at := int32(1) // in the second exchange, where there is one
						if form.mode == ModeAllGather && forward {
							at = 0
						}
						g.t = &faulty{Transport: g.t, at: at, fail: func() error { return x.fail(g, ended) }}
						w := faultyCall(form)
						start := time.Now()
						_, list := w.run(t, groups, false, forward)
						require.LessOrEqual(t, time.Since(start), patience)
						requireNamed(t, list, bad, x.want)
						// The group stays closed, and says why.
						for r, g := range groups {
							require.Error(t, g.Barrier(context.Background()), "rank %d", r)
						}
					})
				})
			}
		}
	}
}

// Ranks that disagree learn which one differs and on what, and can go on.
func TestDisagreementNamesTheRankAndTheField(t *testing.T) {
	testlevel.HostOnly(t)
	const ranks, odd = 3, 1
	good := Config{Config: attention.Config{HeadDim: 8}}
	p := Problem{Shape: attention.Shape{B: 1, Hq: 2, Sq: 9, Sk: 9}}
	groups := ranksOf(t, ranks)
	for field, change := range map[string]func(*Config, *Problem){
		"Config":                  func(c *Config, _ *Problem) { c.Causal = attention.TopLeft },
		"Mode, Order or Schedule": func(c *Config, _ *Problem) { c.Mode = ModeAllGather },
		"Shape":                   func(_ *Config, p *Problem) { p.Sk = 8 },
		"Split":                   func(_ *Config, p *Problem) { p.Rows = Zigzag(9, ranks) },
		"cu_seqlens":              func(_ *Config, p *Problem) { p.CuQ, p.CuK = []int{0, 9}, []int{0, 9} },
	} {
		list := onAll(groups, func(r int, g *Group) error {
			cfg, p := good, p
			if r == odd {
				change(&cfg, &p)
			}
			op, err := New(g, nil, cfg)
			if err != nil {
				return err
			}
			plan, err := op.Plan(p)
			if err != nil {
				return err
			}
			return op.Forward(context.Background(), nil, newWhole(cfg, p, 1).of(&plan, r, false).Args)
		})
		for r, err := range list {
			var named *RankError
			require.ErrorAs(t, err, &named, "%s, rank %d", field, r)
			require.Equal(t, odd, named.Rank, "%s: %v", field, err)
			require.ErrorIs(t, err, ErrMismatch)
			require.ErrorContains(t, err, field)
		}
	}
	// Another method, and a call that a rank cannot take part in.
	list := onAll(groups, func(r int, g *Group) error {
		if r == odd {
			return g.Barrier(context.Background())
		}
		op, err := New(g, nil, good)
		require.NoError(t, err)
		plan, err := op.Plan(p)
		require.NoError(t, err)
		return op.Forward(context.Background(), nil, newWhole(good, p, 1).of(&plan, r, false).Args)
	})
	for _, err := range list {
		require.ErrorContains(t, err, "method")
	}
	list = onAll(groups, func(r int, g *Group) error {
		op, err := New(g, nil, good)
		require.NoError(t, err)
		plan, err := op.Plan(p)
		require.NoError(t, err)
		a := newWhole(good, p, 1).of(&plan, r, false).Args
		if r == odd {
			a.K.Host = a.K.Host[:len(a.K.Host)-1]
		}
		return op.Forward(context.Background(), nil, a)
	})
	for r, err := range list {
		require.ErrorContains(t, err, "K is")
		require.ErrorIs(t, err, map[bool]error{true: attention.ErrInvalid, false: ErrFailed}[r == odd])
	}
	newWhole(good, p, 1).forward(t, groups, false)
}

// Ranks whose Configs differ in any field disagree.
func TestChecksumHasEveryFieldOfConfig(t *testing.T) {
	testlevel.HostOnly(t)
	base := attention.Config{HeadDim: 8}
	seen := map[uint64]string{checksum(base): "the base"}
	add := func(name string, cfg attention.Config) {
		sum := checksum(cfg)
		require.Empty(t, seen[sum], "%s is not in the checksum", name)
		seen[sum] = name
	}
	fields := reflect.TypeFor[attention.Config]()
	for i := range fields.NumField() {
		cfg := base
		switch f := reflect.ValueOf(&cfg).Elem().Field(i); f.Kind() {
		case reflect.Struct:
			continue // below
		case reflect.Bool:
			f.SetBool(true)
		case reflect.String:
			f.SetString("ref")
		case reflect.Float32:
			f.SetFloat(0.5)
		case reflect.Uint8:
			f.SetUint(1)
		default:
			f.SetInt(f.Int() + 1)
		}
		add(fields.Field(i).Name, cfg)
	}
	scaled, windowed := base, base
	scaled.Scale, windowed.Window = attention.ScaleOf(0.25), attention.WindowOf(3, 0)
	add("Scale", scaled)
	add("Window", windowed)
}

// A canceled context and a call of Abort end the call on all ranks, and name their rank.
func TestCancelAndAbortEndTheCall(t *testing.T) {
	testlevel.HostOnly(t)
	for _, x := range []struct {
		end  func(g *Group, cancel func())
		want error
	}{
		{func(_ *Group, cancel func()) { cancel() }, context.Canceled},
		{func(g *Group, _ func()) { g.Abort(nil) }, ErrFailed},
		{func(g *Group, _ func()) { require.NoError(t, g.Close()) }, ErrLeft},
	} {
		synctest.Test(t, func(t *testing.T) {
			list := onAll(ranksOf(t, 3), func(r int, g *Group) error {
				if r == 2 {
					return nil // never calls
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if r == 1 {
					time.AfterFunc(time.Second, func() { x.end(g, cancel) }) // when both wait
				}
				return g.Barrier(ctx)
			})
			for r, err := range list[:2] {
				var named *RankError
				require.ErrorAs(t, err, &named)
				require.Equal(t, 1, named.Rank, "rank %d: %v", r, err)
				require.ErrorIs(t, err, x.want)
			}
		})
	}
}

// A rank that never calls is named by those that wait for it.
func TestTimeoutNamesTheMissingRank(t *testing.T) {
	testlevel.HostOnly(t)
	synctest.Test(t, func(t *testing.T) {
		for r, err := range onAll(ranksOf(t, 4), func(r int, g *Group) error {
			if r == 3 {
				return nil
			}
			return g.Barrier(context.Background())
		})[:3] {
			require.ErrorIs(t, err, ErrTimeout)
			require.EqualError(t, err, "parallel: rank 3: no response within the timeout", "rank %d", r)
		}
	})
}

// Messages of different sizes end the call instead of writing past the memory.
func TestMessagesOfDifferentSizes(t *testing.T) {
	testlevel.HostOnly(t)
	transports, err := InProcess(2)
	require.NoError(t, err)
	_, err = transports[0].Exchange([]Transfer{{1, Memory{Host: make([]byte, 8), Bytes: 8}}}, nil)
	require.NoError(t, err)
	_, err = transports[1].Exchange(nil, []Transfer{{0, Memory{Host: make([]byte, 4), Bytes: 4}}})
	require.ErrorIs(t, err, ErrMismatch)
	for _, x := range []Transfer{{0, Memory{Host: make([]byte, 1)}}, {2, Memory{Host: make([]byte, 1)}}, {1, Memory{}},
		{1, Memory{Host: make([]byte, 4), Offset: 2, Bytes: 3}}, {1, Memory{Host: make([]byte, 4), Offset: -1, Bytes: 1}}} {
		_, err := transports[0].Exchange([]Transfer{x}, nil)
		require.ErrorIs(t, err, attention.ErrInvalid)
	}
	_, err = InProcess(0)
	require.ErrorIs(t, err, attention.ErrInvalid)
	_, err = NewGroup(nil, GroupOptions{})
	require.ErrorIs(t, err, attention.ErrInvalid)
}
