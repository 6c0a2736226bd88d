//go:build !windows

package vk

import (
	"bytes"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// failing replaces a function of the driver by one that returns VK_ERROR_OUT_OF_HOST_MEMORY (-1), until
// the returned function is called: fsync of a handle, which is no file. Go cannot be called here.
func failing[F any](t *testing.T, function *F) (restore func()) {
	t.Helper()
	fails, err := purego.Dlsym(purego.RTLD_DEFAULT, "fsync")
	require.NoError(t, err)
	place := (*uintptr)(unsafe.Pointer(function))
	was := *place
	*place = fails
	return func() { *place = was }
}

// A submission that fails gives back the staging memory of its uploads.
func TestUploadsGoOnAfterAFailedSubmission(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	const size = 60 << 10
	b := newBuffer(t, d, size, DeviceLocal)
	data := bytes.Repeat([]byte{7, 8, 9}, size/3)
	for range 4 { // all of the ring, which has room for four
		require.NoError(t, s.Upload(b, 0, make([]byte, size)))
	}
	restore := failing(t, &d.c.QueueSubmit)
	_, err := s.Submit()
	restore()
	require.ErrorIs(t, err, ErrOutOfMemory)
	done := make(chan error, 1)
	go func() { done <- s.Upload(b, 0, data) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Minute):
		d.closing.Store(true) // ends the wait
		t.Fatal("Upload waits for staging memory that nobody gives back")
	}
	got := make([]byte, size)
	require.NoError(t, s.Download(background(t), got, b, 0))
	require.Equal(t, data, got)
}

// After timestamps that could not be read a finished batch is reused once.
func TestBatchesAreReusedOnceAfterAFailedQuery(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	b := newBuffer(t, d, 64, DeviceLocal)
	gate, err := d.NewTimeline(false)
	require.NoError(t, err)
	defer func() { require.NoError(t, gate.Close()) }()
	require.NoError(t, s.WaitFor(gate, 1))
	var lost, known Mark
	for i := range 4 {
		require.NoError(t, s.Fill(BufferRange{Buffer: b}, uint32(i)))
		switch i {
		case 1:
			lost, err = s.Timestamp()
		case 3:
			known, err = s.Timestamp()
		}
		require.NoError(t, err)
		_, err = s.Submit()
		require.NoError(t, err)
	}
	require.NoError(t, gate.Signal(1))
	_, err = gate.Value()
	require.NoError(t, err)
	require.NoError(t, s.Timeline().Wait(background(t), 4))
	restore := failing(t, &d.c.GetQueryPoolResults)
	require.ErrorIs(t, s.Wait(background(t)), ErrOutOfMemory)
	restore()
	require.NoError(t, s.Wait(background(t)))
	require.Empty(t, s.inflight)
	for i, x := range s.idle {
		require.False(t, slices.Contains(s.idle[:i], x), "batch %d is there twice", i)
	}
	require.Len(t, s.idle, 4)
	_, err = s.Ticks(lost)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = s.Ticks(known)
	require.ErrorIs(t, err, ErrInvalid)
}
