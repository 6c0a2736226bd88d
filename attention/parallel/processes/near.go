package processes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"vkattn/attention/internal/errs"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/control"
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
			s.all[ch.Rank()], err = unix.Mmap(int(f.Fd()), 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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

// newShared makes the file of this rank. It has no name, so nothing of it is left when its processes have
// ended, however they end. Its memory is allocated at once: a page that could not be when it is first
// written would end the process by SIGBUS.
func newShared() (*os.File, error) {
	fd, err := unix.MemfdCreate("vkattn", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := unix.Fallocate(fd, 0, 0, sharedBytes); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
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
	b, err := unix.Mmap(int(f.Fd()), 0, sharedBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	if !bytes.Equal(b[:sharedToken], x.Token) {
		_ = unix.Munmap(b)
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
			_ = unix.Munmap(b)
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
	me := s.ch.Rank()
	if ctx == nil {
		ctx = context.Background()
	}
	m, err := s.ch.Post(s.peers, s.peers)
	if err != nil {
		return err
	}
	m.Await()
	defer m.Done()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.all == nil {
		return left(s.ch)
	}
	s.calls++
	turn := int(s.calls % 2)
	area, size := sharedAreas+turn*sharedArea, sharedSize+turn*8
	mine := s.all[me]
	at := area
	for _, x := range parts[me] {
		at += copy(mine[at:], x)
	}
	atomic.StoreUint64(word(mine, size), uint64(bytes))
	atomic.StoreUint64(word(mine, sharedNumber), s.calls)
	var loop pause.Loop
	for _, r := range s.peers {
		theirs := s.all[r]
		for ; atomic.LoadUint64(word(theirs, sharedNumber)) < s.calls; loop.Wait() {
			if err := s.look(ctx, m, r); err != nil {
				return err
			}
		}
		if n := atomic.LoadUint64(word(theirs, size)); n != uint64(bytes) {
			s.ch.Abort(&parallel.RankError{Rank: r, Err: fmt.Errorf("%w: it gathers %d bytes where rank %d has %d", parallel.ErrMismatch, n, me, bytes)})
			return left(s.ch)
		}
		at := area
		for _, x := range parts[r] {
			at += copy(x, theirs[at:])
		}
	}
	return nil
}

// look reports why a wait for a rank ends.
func (s *shared) look(ctx context.Context, m *control.Messages, r int) error {
	select {
	case <-s.ch.Ended():
		return s.ch.Err()
	case <-ctx.Done():
		return s.ch.TimedOut(ctx, r)
	default:
	}
	if cause := m.Missing(); cause != nil {
		s.ch.Abort(cause)
		return left(s.ch)
	}
	return nil
}

// word is a number in shared memory.
func word(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }
