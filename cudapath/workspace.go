package cudapath

import (
	"fmt"
	"sync"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
)

// Backward calls, those of latent attention and decode calls that split the keys take memory of the stream in addition to their tensors.
// The work of a stream runs in order, so that one workspace serves all its calls.

// workspace is the memory of a stream. Calls of the stream use it, and its Close.
type workspace struct {
	m        *deviceMemory   // nil: none yet
	given    bool            // m is the caller's: nothing else is taken
	captured bool            // a graph has the address of m
	retired  []*deviceMemory // smaller ones that graphs have
	zeroed   bool            // the counters at the start of m are 0, as decode kernels leave them; not of the caller's memory, where other calls write there
}

// counterBytes is what a workspace of the stream's own has for counters in front of the rest.
const counterBytes = 16 << 10

// UseWorkspace makes the calls of a stream that need a workspace use memory of the caller's, which he keeps until the stream is closed
// and no graph that captured the stream is launched any more. A call that needs more is refused and allocates nothing:
// Plan.WorkspaceBytes and BackwardPlan.ScratchBytes say how much a call needs. The stream is one of a device that OpenDevice opened.
func UseWorkspace(s *attention.Stream, m *attention.Memory) error {
	const op = "UseWorkspace"
	to, ok := problem.StreamBackingOf(s).(*deviceStream)
	if !ok {
		return invalid(op, "no stream of a device that OpenDevice opened")
	}
	from, ok := problem.BackingOf(m).(*deviceMemory)
	switch {
	case !ok || from.d != to.d:
		return invalid(op, "no memory of the stream's device")
	case m.Closed():
		return closed(op)
	case from.address%256 != 0:
		return invalid(op, "memory at %#x: a multiple of 256 is needed", from.address)
	}
	if err := to.notCaptured(op, "it changes the workspace"); err != nil {
		return err
	}
	to.workspace.close()
	to.workspace.m, to.workspace.given = from, true
	return nil
}

// scratch returns the address of memory for the stream's next work. op is the method that needs it.
func (s *deviceStream) scratch(op string, bytes uint64) (uint64, error) {
	if r := s.recording; r != nil {
		r.scratch = max(r.scratch, bytes)
		return r.scratchAt, nil
	}
	w := &s.workspace
	if w.given {
		if w.m.size < bytes {
			return 0, fmt.Errorf("%w: the call needs a workspace of %s, UseWorkspace gave %s", problem.ErrInvalid, hostmem.Bytes(bytes), hostmem.Bytes(w.m.size))
		}
		return w.m.address, nil
	}
	captured, err := s.capturing(launchOp)
	if err != nil {
		return 0, err
	}
	if all := bytes + counterBytes; w.m == nil || w.m.size < all {
		var m *deviceMemory
		if captured { // other calls leave the spare one to graphs, which cannot allocate
			m = s.d.spares.take(all)
		}
		if m == nil && captured {
			return 0, s.notCaptured(op, fmt.Sprintf("the call allocates a workspace of %s: make one like it, or prepare it, before", hostmem.Bytes(bytes)))
		}
		if w.captured {
			w.retired = append(w.retired, w.m)
		} else if w.m != nil && !captured {
			_ = w.m.Close()
		} else if w.m != nil {
			w.retired = append(w.retired, w.m)
		}
		w.m, w.captured, w.zeroed = nil, false, false
		if m == nil {
			if m, err = s.d.scratch(all); err != nil {
				return 0, err
			}
		}
		w.m = m
	}
	w.captured = w.captured || captured
	return w.m.address + counterBytes, nil
}

// splitScratch returns memory for the counters of a decode call, which are 0, and for the states of its splits.
func (s *deviceStream) splitScratch(counters, states uint64) (countersAt, statesAt uint64, err error) {
	if s.recording != nil {
		return 0, 0, unrecorded("its counters may have to be cleared")
	}
	w := &s.workspace
	if w.given {
		at, err := s.scratch("Forward", counters+states)
		if err != nil {
			return 0, 0, err
		}
		return at, at + counters, s.Fill(at, 0, counters)
	}
	if counters > counterBytes {
		return 0, 0, unsupported("Launch", "%s of counters, a stream has %s", hostmem.Bytes(counters), hostmem.Bytes(counterBytes))
	}
	at, err := s.scratch("Forward", states)
	if err != nil || w.zeroed {
		return at - counterBytes, at, err
	}
	captured, err := s.capturing(launchOp)
	if err != nil {
		return 0, 0, err
	}
	if err := s.Fill(at-counterBytes, 0, counterBytes); err != nil {
		return 0, 0, err
	}
	w.zeroed = !captured // a graph clears them when it runs
	return at - counterBytes, at, nil
}

// close frees the memory.
func (w *workspace) close() {
	for _, m := range w.retired {
		_ = m.Close()
	}
	if w.m != nil && !w.given {
		_ = w.m.Close()
	}
	*w = workspace{}
}

// scratch allocates a workspace.
func (d *device) scratch(bytes uint64) (*deviceMemory, error) {
	m, err := d.NewMemory(int64(bytes+3) &^ 3)
	if err != nil {
		return nil, fmt.Errorf("memory for the workspace: %w", err)
	}
	return m.(*deviceMemory), nil
}

// spares are workspaces that Prepare has allocated and no graph has taken: the largest one.
type spares struct {
	mu sync.Mutex
	m  *deviceMemory
}

// take returns a spare workspace of at least the given size, nil if there is none.
func (s *spares) take(bytes uint64) *deviceMemory {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || s.m.size < bytes {
		return nil
	}
	m := s.m
	s.m = nil
	return m
}

// prepare makes take return a workspace.
func (d *device) prepareWorkspace(bytes uint64) error {
	s := &d.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes += counterBytes
	if s.m != nil && s.m.size >= bytes {
		return nil
	}
	m, err := d.scratch(bytes)
	if err != nil {
		return err
	}
	if s.m != nil {
		_ = s.m.Close()
	}
	s.m = m
	return nil
}

var _ backend.Memory = (*deviceMemory)(nil)
