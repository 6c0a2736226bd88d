package control

import "encoding/json"

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
