package ranktest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Waits has contexts of ranks that tell when all of these ranks wait: for their end, which a wait looks at
// when its messages are on their way.
type Waits struct {
	left atomic.Int32
	all  chan struct{}
}

// NewWaits is for n ranks, which take a Context each.
func NewWaits(n int) *Waits {
	w := &Waits{all: make(chan struct{})}
	w.left.Store(int32(n))
	return w
}

// All is closed when all ranks wait.
func (w *Waits) All() <-chan struct{} { return w.all }

// Context is a rank's. If it ends, its deadline is over when all ranks wait.
func (w *Waits) Context(ends bool) context.Context { return &waiting{w: w, ends: ends} }

type waiting struct {
	w    *Waits
	ends bool
	once sync.Once
}

func (c *waiting) Done() <-chan struct{} {
	c.once.Do(func() {
		if c.w.left.Add(-1) == 0 {
			close(c.w.all)
		}
	})
	if !c.ends {
		return nil
	}
	return c.w.all
}

func (c *waiting) Err() error {
	if c.ends {
		select {
		case <-c.w.all:
			return context.DeadlineExceeded
		default:
		}
	}
	return nil
}

func (c *waiting) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *waiting) Value(any) any               { return nil }
