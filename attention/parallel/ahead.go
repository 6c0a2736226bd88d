package parallel

import (
	"errors"
	"sync/atomic"
	"time"

	"vkattn/vk"
)

// A merge that is submitted ahead. While the device computes this rank's state, the host submits the merge
// behind it. The merge waits for a timeline, which the host signals when the states of the other ranks are
// in memory. The device has then read the commands already.
//
// The merge also holds up what other streams submit to the queue behind it. The host therefore opens the
// gate at the latest aheadTime after this rank's state is there, whatever the other ranks do. Such a merge
// has read states of an earlier call, and a second merge follows when those of this call are there. So two
// groups on one device cannot wait for each other for ever, and neither do other streams.

// aheadTime is how long a merge may wait for other ranks. Tests change it.
var aheadTime = time.Millisecond

// gate holds up merges of an operation.
type gate struct {
	timeline *vk.Timeline
	value    uint64 // of the last merge
}

// held is a merge that waits at the gate.
type held struct {
	timeline  *vk.Timeline
	value     uint64 // that opens the gate
	opened    atomic.Bool
	timer     *time.Timer
	submitted uint64 // value of the stream's timeline when the merge has finished
}

// submitAhead submits the merge of a recorded call. It returns nil if that is not possible.
func (d *decode) submitAhead(op *Op) (*held, error) {
	g := &op.recordings.gate
	if g.timeline == nil {
		t, err := d.s.Device().NewTimeline(false)
		if err != nil {
			return nil, err
		}
		g.timeline = t
	}
	g.value++
	g.timeline.Promise(g.value)
	h := &held{timeline: g.timeline, value: g.value}
	err := d.s.WaitFor(g.timeline, g.value)
	if err == nil {
		h.submitted, err = d.s.Replay(d.again.merge)
	}
	if err != nil {
		_, opened := h.open() // what the stream submits next may wait for it
		if err = errors.Join(err, opened); errors.Is(err, vk.ErrStale) && opened == nil {
			err = nil
		}
		return nil, err
	}
	return h, nil
}

// close gives the timeline back; no merge waits.
func (g *gate) close() error {
	err := g.timeline.Close()
	*g = gate{}
	return err
}

// open lets the merge run. It returns false if something else has opened the gate before.
func (h *held) open() (bool, error) {
	if h == nil {
		return false, nil
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	return h.signal()
}

// signal is open for any goroutine.
func (h *held) signal() (bool, error) {
	if h.opened.Swap(true) {
		return false, nil
	}
	return true, h.timeline.Signal(h.value)
}

// limit opens the gate after aheadTime.
func (h *held) limit() {
	if h == nil {
		return
	}
	h.timer = time.AfterFunc(aheadTime, func() {
		_, _ = h.signal() // it fails if the device is lost or closed: the wait for the merge has that error too
	})
}
