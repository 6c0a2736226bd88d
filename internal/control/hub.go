package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"vkattn/attention/parallel"
)

// hub is rank 0's side of the side channel. It has a link to every rank, its own Channel
// included.
type hub struct {
	grace time.Duration // for the answers to an inquiry

	mu      sync.Mutex
	links   []*link
	left    []bool
	last    []*state // of ranks that have left
	ended   bool
	parts   [][]byte // of the Gather under way; nil: not there yet
	has     []bool
	missing int
	inquiry *inquiry
}

// inquiry finds the culprit of a timeout.
type inquiry struct {
	reporter, peer int
	has            []bool // who had brought its part of the Gather when the report came
	states         []*state
	timer          *time.Timer
}

func newHub(ranks int, grace time.Duration) *hub {
	return &hub{grace: grace, links: make([]*link, ranks), left: make([]bool, ranks), last: make([]*state, ranks),
		parts: make([][]byte, ranks), has: make([]bool, ranks), missing: ranks}
}

// handle handles a frame of a rank.
func (h *hub) handle(r int, kind frameKind, payload []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ranks := len(h.links)
	ok := true
	switch {
	case kind == frameBye:
		var s *state
		if s, ok = decodeState(payload, ranks); ok {
			h.leaveLocked(r, s)
		}
	case h.ended:
	case kind == frameGather:
		ok = !h.has[r] && len(payload) <= maxPart
		if ok {
			h.gatherLocked(r, payload)
		}
	case kind == frameReport:
		var cause *parallel.RankError
		if cause, ok = decodeCause(payload, ranks); ok && h.inquiry == nil {
			h.inquireLocked(r, cause.Rank)
		}
	case kind == frameState:
		var s *state
		if s, ok = decodeState(payload, ranks); ok && h.inquiry != nil {
			h.inquiry.states[r] = s
			h.answeredLocked()
		}
	case kind == frameAbort:
		var cause *parallel.RankError
		if cause, ok = decodeCause(payload, ranks); ok {
			h.endLocked(cause)
		}
	default:
		ok = false
	}
	if !ok {
		h.endLocked(&parallel.RankError{Rank: r, Err: fmt.Errorf("%w: frame %d is not expected", parallel.ErrMismatch, kind)})
	}
}

// gone ends the world after the link to a rank has ended.
func (h *hub) gone(r int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.left[r] {
		h.endLocked(lost(r, err))
	}
}

func (h *hub) toAllLocked(kind frameKind, payload []byte) {
	frame := encodeFrame(kind, payload) // once: a Gather of many ranks is large
	for _, l := range h.links {
		if l != nil {
			l.sendFrame(frame)
		}
	}
}

// endLocked tells all ranks the first cause.
func (h *hub) endLocked(cause *parallel.RankError) {
	if h.ended {
		return
	}
	h.ended = true
	if h.inquiry != nil {
		h.inquiry.timer.Stop()
	}
	h.toAllLocked(frameAbort, encodeCause(cause))
}

func (h *hub) gatherLocked(r int, part []byte) {
	h.parts[r], h.has[r] = part, true
	if h.missing--; h.missing == 0 {
		h.toAllLocked(frameGathered, encodeParts(h.parts))
		clear(h.parts)
		clear(h.has)
		h.missing = len(h.has)
		return
	}
	for other, left := range h.left {
		if left && !h.has[other] {
			h.endLocked(&parallel.RankError{Rank: other, Err: parallel.ErrLeft})
			return
		}
	}
}

// leaveLocked lets a rank go. A Gather that needs it ends. The others learn what it had posted.
func (h *hub) leaveLocked(r int, last *state) {
	if h.left[r] {
		return
	}
	h.left[r], h.last[r] = true, last
	if h.missing < len(h.has) && !h.has[r] {
		h.endLocked(&parallel.RankError{Rank: r, Err: parallel.ErrLeft})
	}
	last.Rank = r
	h.toAllLocked(frameLeft, last.encode())
	h.links[r].close()
	if r == 0 { // nobody relays any more
		for _, l := range h.links {
			l.close()
		}
	}
	if h.inquiry != nil {
		h.inquiry.states[r] = h.last[r]
		h.answeredLocked()
	}
}

// inquireLocked asks all ranks what they wait for.
func (h *hub) inquireLocked(reporter, peer int) {
	q := &inquiry{reporter: reporter, peer: peer, has: slices.Clone(h.has), states: slices.Clone(h.last)}
	h.inquiry = q
	h.toAllLocked(frameQuery, nil)
	q.timer = time.AfterFunc(h.grace, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.resolveLocked()
	})
}

func (h *hub) answeredLocked() {
	for r, s := range h.inquiry.states {
		if s == nil && !h.left[r] {
			return
		}
	}
	h.resolveLocked()
}

func (h *hub) resolveLocked() {
	q := h.inquiry
	reason := parallel.ErrTimeout
	r := culprit(q.states, q.has, h.left, q.reporter, q.peer)
	if h.left[r] {
		reason = parallel.ErrLeft
	}
	h.endLocked(&parallel.RankError{Rank: r, Err: reason})
}

// close closes all links and waits for them.
func (h *hub) close(within time.Duration) {
	h.mu.Lock()
	links := h.links
	if h.inquiry != nil {
		h.inquiry.timer.Stop()
	}
	h.mu.Unlock()
	for _, l := range links {
		if l != nil {
			l.close()
		}
	}
	var all sync.WaitGroup
	for _, l := range links {
		if l != nil {
			all.Go(func() { l.finish(within) })
		}
	}
	all.Wait()
}

// What a rank waits for, from which rank 0 finds the one that holds the others up.

type activity uint8

const (
	computes activity = iota // or is outside of any call
	gathers
	waits // for messages
)

// awaited is one message of an Exchange that a rank waits for.
type awaited struct {
	Peer int
	Send bool
	N    uint64 // of this rank's sends to the peer, or receives from it, counted from 0
}

// posted counts the messages of a rank with one peer.
type posted struct{ Sends, Receives uint64 }

// state is what a rank tells of itself. It is sent as JSON.
type state struct {
	Rank     int // set by the hub
	Activity activity
	Awaited  []awaited
	Posted   map[int]posted // by peer
}

// needs reports whether a message waits for its peer to post the other side.
func (a *awaited) needs(me int, peer *state) bool {
	p := peer.Posted[me]
	if a.Send {
		return p.Receives <= a.N
	}
	return p.Sends <= a.N
}

func (s *state) encode() []byte { return encodeJSON(s) }

func decodeState(b []byte, ranks int) (*state, bool) {
	var s state
	ok := json.Unmarshal(b, &s) == nil && s.Activity <= waits && s.Rank >= 0 && s.Rank < ranks
	for _, a := range s.Awaited {
		ok = ok && a.Peer >= 0 && a.Peer < ranks
	}
	return &s, ok
}

// culprit finds the rank that holds up reporter, who waited for peer. has says which ranks had
// brought their part of the Gather under way when reporter gave up. A rank without a state did
// not answer. A rank that has left posts nothing any more.
func culprit(states []*state, has, left []bool, reporter, peer int) int {
	needs := func(r int) (list []int) {
		s := states[r]
		switch {
		case has[r]: // it waited in the Gather
			for other := range has {
				if !has[other] {
					list = append(list, other)
				}
			}
		case s != nil && s.Activity == waits:
			for i := range s.Awaited {
				a := &s.Awaited[i]
				if states[a.Peer] == nil || a.needs(r, states[a.Peer]) {
					list = append(list, a.Peer)
				}
			}
		}
		return list
	}
	if first := needs(reporter); len(first) > 0 {
		peer = first[0]
	}
	seen := make([]bool, len(states))
	seen[reporter] = true
	for queue := []int{reporter}; len(queue) > 0; queue = queue[1:] {
		for _, r := range needs(queue[0]) {
			switch {
			case seen[r]:
				continue
			case left[r], states[r] == nil, states[r].Activity == computes:
				return r
			}
			seen[r] = true
			queue = append(queue, r)
		}
	}
	return peer // all have posted, or wait for one another
}
