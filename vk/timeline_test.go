package vk

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A timeline that is closed while another goroutine waits for it is destroyed after the wait.
func TestCloseDuringAWait(t *testing.T) {
	d := openExecuting(t)
	tl, err := d.NewTimeline(false)
	require.NoError(t, err)
	destroyed := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return tl.gone
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tl.Wait(ctx, 1) }()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, tl.Close())
	assert.False(t, destroyed(), "while a goroutine waits for it")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	assert.True(t, destroyed())
	_, err = tl.Value()
	require.ErrorIs(t, err, ErrClosed)
}
