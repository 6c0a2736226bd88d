package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openListening opens a device with validation whose messages are the test's.
func openListening(t *testing.T, change ...func(*Options)) (*Device, *[]Message) {
	t.Helper()
	needExecution(t)
	var got []Message
	o := Options{Validation: true, PipelineCache: "off", OnMessage: func(m Message) { got = append(got, m) }}
	for _, f := range change {
		f(&o)
	}
	d, err := Open(o)
	if err != nil {
		require.ErrorIs(t, err, ErrUnsupported)
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d, &got
}

func TestValidationIsHeard(t *testing.T) {
	d, got := openListening(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal)
	require.NoError(t, s.Barrier())
	assert.Empty(t, *got)
	require.NoError(t, s.copy(s.b, x, 0, y, 0, 1<<20)) // past the checks of Copy
	require.NoError(t, s.Barrier())
	require.NotEmpty(t, *got)
	m := (*got)[0]
	assert.Equal(t, SeverityError, m.Severity)
	assert.Contains(t, m.ID, "VUID-vkCmdCopyBuffer")
	assert.Contains(t, m.Text, t.Name(), "objects are named")
	assert.Equal(t, *got, d.ValidationMessages())
}

func TestSynchronizationValidationIsHeard(t *testing.T) {
	d, got := openListening(t, func(o *Options) { o.SyncValidation = true })
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal)
	s.NoBarrier = true
	require.NoError(t, s.Fill(BufferRange{Buffer: x}, 1))
	require.NoError(t, s.Copy(BufferRange{Buffer: y}, BufferRange{Buffer: x}))
	require.NoError(t, s.Wait(background(t)))
	require.NotEmpty(t, *got)
	assert.Contains(t, (*got)[0].ID, "SYNC-HAZARD-READ-AFTER-WRITE")
}

func TestLabelsNest(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	outer := s.Label("outer")
	inner := s.Label("inner")
	require.NoError(t, s.Barrier())
	inner()
	outer()
	outer() // twice is once
	left := s.Label("left open")
	require.NoError(t, s.Wait(background(t)))
	left()
	require.NoError(t, s.Wait(background(t)))
}
