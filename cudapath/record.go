package cudapath

import (
	"fmt"
	"slices"
	"unsafe"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// Recording is the launches of a call, but for the addresses of its tensors, for a caller that makes the same call again and
// again without Go: bindings/c. Op.Forward and Op.Backward check and choose, once.
type Recording struct {
	Context                                         uint64 // CUcontext that is current around the launches
	Push, Pop, Encode, Launch, LaunchEx, IsCaptured uint64 // functions of the driver: cuCtxPushCurrent and so on
	Workspace                                       uint64 // bytes of the stream's workspace that the launches use
	Launches                                        []RecordedLaunch
}

// RecordedLaunch is one kernel launch.
type RecordedLaunch struct {
	Function        uint64 // CUfunction
	Grid            [3]uint32
	Threads, Shared uint32
	Early           bool          // with programmatic stream serialization
	Maps            []RecordedMap // tensor maps, the first arguments
	Params          []uint64      // the last argument
	Addresses       []RecordedAddress
}

// RecordedAddress says that a word of the parameters is an address of tensor Of, or of the workspace, plus Offset.
type RecordedAddress struct {
	Word, Of int // Of is the number of tensors for the workspace
	Offset   uint64
}

// RecordedMap is a tensor map at an address of tensor Of plus Offset.
type RecordedMap struct {
	Of            int
	Offset        uint64
	Dims          [4]uint64
	Strides       [3]uint64
	Box           [4]uint32
	Kind, Swizzle int32
}

// recording collects the launches of a stream that records them instead.
type recording struct {
	scratchAt uint64 // the address of the workspace
	scratch   uint64 // its size
	launches  []recordedCall
}

type recordedCall struct {
	cudaCall
	params []uint64
}

// add records a launch.
func (r *recording) add(call *cudaCall, params unsafe.Pointer, bytes uintptr) {
	c := *call
	clear(c.maps[c.count:]) // of an earlier launch
	r.launches = append(r.launches, recordedCall{c, slices.Clone(unsafe.Slice((*uint64)(params), bytes/8))})
}

// Memories of a recording lie far from one another, at multiples of every alignment that a plan looks at. Those of a second
// recording lie further by distances of which no sum is another, which tells the words that are addresses from others.
func recordedAt(second bool, i int) uint64 {
	at := uint64(i+1) << 42
	if second {
		at += 1 << (20 + i)
	}
	return at
}

// most is the largest number of tensors of a recording, and maxRecorded bounds their bytes.
const (
	mostRecorded = 16
	maxRecorded  = 1 << 40
)

// Record records the launches of a call, which run makes on the given stream with the given memories, one for each element of
// bytes. It launches nothing. A call whose launches depend on more than addresses is refused with an error that matches
// vk.ErrUnsupported: one that clears memory, or that has not run before.
func Record(d *attention.Device, bytes []uint64, run func(*attention.Stream, []*attention.Memory) error) (*Recording, error) {
	const op = "Record"
	b, err := of(op, d)
	if err != nil {
		return nil, err
	}
	if run == nil || len(bytes) >= mostRecorded || len(bytes) > 0 && slices.Max(bytes) > maxRecorded {
		return nil, invalid(op, "no call, or %d memories, more than %d or larger than 2^40 bytes", len(bytes), mostRecorded-1)
	}
	var r [2]recording
	for i := range r {
		memories := make([]*attention.Memory, len(bytes))
		for j, n := range bytes {
			memories[j] = b.memory(recordedAt(i == 1, j), n, true).named
		}
		r[i].scratchAt = recordedAt(i == 1, len(bytes))
		s := problem.NewStream(&deviceStream{Stream: &Stream{c: b.c, wrapped: true, recording: &r[i]}, d: b})
		if err := run(s, memories); err != nil {
			return nil, err
		}
	}
	a := b.c.lib.api
	to := &Recording{Context: b.c.handle, Push: uint64(a.cuCtxPushCurrent_v2), Pop: uint64(a.cuCtxPopCurrent_v2),
		Encode: uint64(a.cuTensorMapEncodeTiled), Launch: uint64(a.cuLaunchKernel), LaunchEx: uint64(a.cuLaunchKernelEx),
		IsCaptured: uint64(a.cuStreamIsCapturing), Workspace: r[0].scratch}
	if len(r[0].launches) != len(r[1].launches) || r[0].scratch != r[1].scratch {
		return nil, unrecorded("its launches depend on addresses")
	}
	for i := range r[0].launches {
		l, err := compare(&r[0].launches[i], &r[1].launches[i], len(bytes)+1)
		if err != nil {
			return nil, err
		}
		to.Launches = append(to.Launches, *l)
	}
	return to, nil
}

func unrecorded(why string) error {
	return fmt.Errorf("%w: the call cannot be recorded: %s", problem.ErrUnsupported, why)
}

// compare makes a launch of two recordings of it.
func compare(a, b *recordedCall, memories int) (*RecordedLaunch, error) {
	l := &RecordedLaunch{Function: a.function, Grid: a.grid, Threads: a.threads, Shared: a.shared, Early: a.early}
	// addressOf finds the memory that a word is an address in.
	addressOf := func(x, y uint64) (of int, offset uint64, ok bool) {
		for i := range memories {
			if first := recordedAt(false, i); x-first == y-recordedAt(true, i) && x-first < maxRecorded {
				return i, x - first, true
			}
		}
		return 0, 0, false
	}
	same := *b
	for i := range a.maps[:a.count] {
		m := &a.maps[i]
		of, offset, ok := addressOf(m.base, b.maps[i].base)
		if !ok {
			return nil, unrecorded("a tensor map is of no tensor")
		}
		same.maps[i].base = m.base
		l.Maps = append(l.Maps, RecordedMap{of, offset, m.dims, m.strides, m.box, m.kind, m.swizzle})
	}
	if same.cudaCall != a.cudaCall || len(a.params) != len(b.params) {
		return nil, unrecorded("its launches depend on addresses")
	}
	l.Params = slices.Clone(a.params)
	for i, x := range a.params {
		if x == b.params[i] {
			continue
		}
		of, offset, ok := addressOf(x, b.params[i])
		if !ok {
			return nil, unrecorded("a parameter depends on addresses")
		}
		l.Addresses = append(l.Addresses, RecordedAddress{i, of, offset})
	}
	return l, nil
}

// Workspace is the part of a stream's workspace that its calls use, none of a stream that has none yet. captured: a CUDA graph
// may have its address, or the stream takes no other.
func Workspace(s *attention.Stream) (address, bytes uint64, captured bool) {
	d, ok := problem.StreamBackingOf(s).(*deviceStream)
	if !ok || d.workspace.m == nil {
		return 0, 0, false
	}
	w := &d.workspace
	if w.given {
		return w.m.address, w.m.size, true
	}
	return w.m.address + counterBytes, w.m.size - counterBytes, w.captured
}
