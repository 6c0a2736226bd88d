package control

import "encoding/binary"

// What a rank waits for, from which rank 0 finds the one that holds the others up.

type activity uint8

const (
	computes activity = iota // or is outside of any call
	gathers
	waits // for messages
)

// awaited is one message of an Exchange that a rank waits for.
type awaited struct {
	peer int
	send bool
	n    uint64 // of this rank's sends to the peer, or receives from it, counted from 0
}

// posted counts the messages of a rank with one peer.
type posted struct{ sends, receives uint64 }

// state is what a rank tells of itself.
type state struct {
	activity activity
	awaited  []awaited
	posted   map[int]posted // by peer
}

// needs reports whether a message waits for its peer to post the other side.
func (a *awaited) needs(me int, peer *state) bool {
	p := peer.posted[me]
	if a.send {
		return p.receives <= a.n
	}
	return p.sends <= a.n
}

func (s *state) encode() []byte {
	b := []byte{byte(s.activity)}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.awaited)))
	for _, a := range s.awaited {
		send := byte(0)
		if a.send {
			send = 1
		}
		b = append(binary.LittleEndian.AppendUint32(b, uint32(a.peer)), send)
		b = binary.LittleEndian.AppendUint64(b, a.n)
	}
	for peer, p := range s.posted {
		b = binary.LittleEndian.AppendUint32(b, uint32(peer))
		b = binary.LittleEndian.AppendUint64(b, p.sends)
		b = binary.LittleEndian.AppendUint64(b, p.receives)
	}
	return b
}

func decodeState(b []byte, ranks int) (*state, bool) {
	const awaitedSize, postedSize = 4 + 1 + 8, 4 + 8 + 8
	if len(b) < 5 || b[0] > byte(waits) {
		return nil, false
	}
	s := &state{activity: activity(b[0]), posted: map[int]posted{}}
	n := uint64(binary.LittleEndian.Uint32(b[1:]))
	if b = b[5:]; uint64(len(b)) < n*awaitedSize || (uint64(len(b))-n*awaitedSize)%postedSize != 0 {
		return nil, false
	}
	for range n {
		peer := binary.LittleEndian.Uint32(b)
		if uint64(peer) >= uint64(ranks) {
			return nil, false
		}
		a := awaited{int(peer), b[4] == 1, binary.LittleEndian.Uint64(b[5:])}
		b = b[awaitedSize:]
		s.awaited = append(s.awaited, a)
	}
	for ; len(b) > 0; b = b[postedSize:] {
		s.posted[int(binary.LittleEndian.Uint32(b))] = posted{binary.LittleEndian.Uint64(b[4:]), binary.LittleEndian.Uint64(b[12:])}
	}
	return s, true
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
		case s != nil && s.activity == waits:
			for i := range s.awaited {
				a := &s.awaited[i]
				if states[a.peer] == nil || a.needs(r, states[a.peer]) {
					list = append(list, a.peer)
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
			case left[r], states[r] == nil, states[r].activity == computes:
				return r
			}
			seen[r] = true
			queue = append(queue, r)
		}
	}
	return peer // all have posted, or wait for one another
}
