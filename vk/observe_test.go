package vk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObserveTimesEveryDispatch(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	if d.Caps().Limits.TimestampValidBits == 0 {
		require.ErrorIs(t, newStream(t, d).Observe(func(Dispatched) {}), ErrUnsupported)
		t.Skip("the queue has no timestamps")
	}
	const n = 1000
	s := newStream(t, d)
	x, y := newBuffer(t, d, 4*n, DeviceLocal), newBuffer(t, d, 4*n, DeviceLocal)
	p := newPipeline(t, d, saxpy(t, 5))
	in := numbers(n, func(i uint32) uint32 { return i })
	require.NoError(t, s.Upload(x, 0, push(in...)))
	require.NoError(t, s.Barrier())
	dispatch := func() {
		t.Helper()
		require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(3, n), groups(n)))
	}
	var seen []Dispatched
	require.NoError(t, s.Observe(func(d Dispatched) { seen = append(seen, d) }))
	dispatch()
	dispatch()
	require.Error(t, s.Dispatch(p, nil, push(3, n), groups(n)), "a refused dispatch is not seen")
	require.NoError(t, s.Observe(nil))
	dispatch()
	got := make([]byte, 4*n)
	require.NoError(t, s.Barrier())
	require.NoError(t, s.Download(background(t), got, y, 0))
	sameWords(t, numbers(n, func(i uint32) uint32 { return 3*i + 5 }), words(got))
	require.NoError(t, s.Wait(background(t)))
	require.Len(t, seen, 2)
	for _, one := range seen {
		require.Equal(t, groups(n), one.Groups)
		require.Equal(t, p, one.Pipeline)
		took, err := s.Elapsed(one.Begin, one.End)
		require.NoError(t, err)
		require.GreaterOrEqual(t, took, 0*took)
	}
	_, err := s.Elapsed(seen[0].End, seen[1].Begin)
	require.NoError(t, err)
	require.ErrorIs(t, (*Stream)(nil).Observe(nil), ErrInvalid)
}
