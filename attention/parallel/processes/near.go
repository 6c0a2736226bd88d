package processes

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/internal/errs"
	"vkattn/internal/pause"
)

// shared is memory that the ranks of one host share. Each rank writes to a file of its own in
// memory, which all others have mapped: a token, the number of its last gather, and two areas that
// gathers use in turn. A rank writes to an area again in the second gather from then. It has then
// seen the number of the first one from all ranks, each of which has read the area before.
type shared struct {
	ch    *control.Channel
	peers []int // all other ranks

	mu    sync.RWMutex // held for writing while the memory ends
	all   [][]byte     // mapped files by rank; nil: ended
	calls uint64
}

const (
	sharedAreas = 4096 // where the first area begins
	sharedArea  = 1 << 20
	sharedBytes = sharedAreas + 2*sharedArea
	sharedToken = 16

	sharedNumber = 64 // offset of the number of the last gather
	sharedSize   = 72 // of the bytes in the first area, and after it in the second
)

// sharedFile says where the other processes of the host find the memory of a rank.
type sharedFile struct {
	PID, FD int // of a file that the process has open; PID 0: none
	Token   []byte
}

// joinShared maps the memory of all ranks. It is nil if not all of them are on one host, or some may
// not open the others' files. All ranks call it at the same point.
func joinShared(ctx context.Context, ch *control.Channel) (*shared, error) {
	s, use := &shared{ch: ch, all: make([][]byte, ch.Ranks())}, false
	defer func() {
		if !use {
			s.end()
		}
	}()
	var me sharedFile
	if f, err := newShared(); err == nil {
		defer f.Close()
		token := make([]byte, sharedToken)
		_, err = rand.Read(token)
		if err == nil {
			s.all[ch.Rank()], err = mapShared(f, true)
		}
		if err == nil {
			copy(s.all[ch.Rank()], token)
			me = sharedFile{os.Getpid(), int(f.Fd()), token}
		}
	}
	files, err := gatherJSON(ctx, ch, &me)
	if err != nil {
		return nil, err
	}
	good := byte(1)
	for r := range files {
		if r != ch.Rank() {
			s.peers = append(s.peers, r)
			s.all[r] = files[r].open()
		}
		if s.all[r] == nil {
			good = 0
		}
	}
	// Every rank has opened the files when this returns.
	answers, err := ch.Gather(ctx, []byte{good})
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if !bytes.Equal(a, []byte{1}) {
			return nil, nil
		}
	}
	use = true
	return s, nil
}

// open maps the file of another rank; nil if it is not there or not that rank's. On another host, or in
// another namespace of processes, the numbers are those of any file.
func (x *sharedFile) open() []byte {
	if x.PID < 1 || x.FD < 0 || len(x.Token) != sharedToken {
		return nil
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", x.PID, x.FD)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() != sharedBytes {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := mapShared(f, false)
	if err != nil {
		return nil
	}
	if !bytes.Equal(b[:sharedToken], x.Token) {
		unmapShared(b)
		return nil
	}
	return b
}

// end unmaps the memory. A gather under way has ended: the Channel is closed.
func (s *shared) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.all {
		if b != nil {
			unmapShared(b)
		}
	}
	s.all = nil
}

// NearBytes implements parallel.Near. 0 without shared memory.
func (s *shared) NearBytes() int64 {
	if s == nil {
		return 0
	}
	return sharedArea
}

// GatherNear implements parallel.Near.
func (s *shared) GatherNear(ctx context.Context, parts [][][]byte) error {
	if s == nil {
		return errs.Invalid("processes: GatherNear without shared memory")
	}
	bytes, err := parallel.CheckNear(s.ch.Ranks(), sharedArea, parts)
	if err != nil {
		return err
	}
	g, err := s.write(parts[s.ch.Rank()])
	if err != nil {
		return err
	}
	return g.read(ctx, func(r int, theirs []byte) error {
		if len(theirs) != int(bytes) {
			return fmt.Errorf("%w: it gathers %d bytes where rank %d has %d", parallel.ErrMismatch, len(theirs), s.ch.Rank(), bytes)
		}
		for _, x := range parts[r] {
			theirs = theirs[copy(x, theirs):]
		}
		return nil
	})
}

// Announce implements parallel.Near.
func (s *shared) Announce(mine []byte) (wait func(context.Context) ([][]byte, error), err error) {
	if s == nil || len(mine) > sharedArea {
		return nil, errs.Invalid("processes: Announce of %d bytes, at most %d", len(mine), s.NearBytes())
	}
	g, err := s.write([][]byte{mine})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([][]byte, error) {
		all := make([][]byte, s.ch.Ranks())
		all[s.ch.Rank()] = mine
		err := g.read(ctx, func(r int, theirs []byte) error {
			all[r] = bytes.Clone(theirs)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return all, nil
	}, nil
}

// write starts a gather: it writes this rank's bytes.
func (s *shared) write(parts [][]byte) (*sharedGather, error) {
	m, err := s.ch.Post(s.peers, s.peers)
	if err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.all == nil {
		return nil, left(s.ch)
	}
	s.calls++
	g := &sharedGather{s, m, s.calls}
	first, size := g.at()
	mine := s.all[s.ch.Rank()]
	at := first
	for _, x := range parts {
		at += copy(mine[at:], x)
	}
	atomic.StoreUint64(word(mine, size), uint64(at-first))
	atomic.StoreUint64(word(mine, sharedNumber), g.number)
	return g, nil
}

// sharedGather is a gather under way.
type sharedGather struct {
	s      *shared
	m      *control.Messages
	number uint64
}

// at are the offsets of the bytes of a rank and of their number.
func (g *sharedGather) at() (area, size int) {
	turn := int(g.number % 2)
	return sharedAreas + turn*sharedArea, sharedSize + turn*8
}

// read calls use with the bytes of each other rank, in order, as they come. An error of use names that
// rank.
func (g *sharedGather) read(ctx context.Context, use func(r int, theirs []byte) error) error {
	s := g.s
	if ctx == nil {
		ctx = context.Background()
	}
	g.m.Await()
	defer g.m.Done()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.all == nil {
		return left(s.ch)
	}
	area, size := g.at()
	var loop pause.Loop
	for _, r := range s.peers {
		theirs := s.all[r]
		for ; atomic.LoadUint64(word(theirs, sharedNumber)) < g.number; loop.Wait() {
			if err := over(ctx, s.ch, g.m, r); err != nil {
				return err
			}
		}
		n := min(atomic.LoadUint64(word(theirs, size)), sharedArea)
		if err := use(r, theirs[area:][:n]); err != nil {
			s.ch.Abort(&parallel.RankError{Rank: r, Err: err})
			return left(s.ch)
		}
	}
	return nil
}

// word is a number in shared memory.
func word(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }
