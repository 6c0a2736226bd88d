package parallel

import (
	"encoding/binary"
	"errors"
	"sync"

	"vkattn/attention"
	"vkattn/vk"
)

// Decode calls that repeat. A program decodes token after token with the same tensors; only the lengths
// change, which kernels read from memory. The second call with the same tensors records the first pass
// and the merge, and later ones submit these recordings: no tensor is checked, planned or recorded again.

// decodeKey is all that the recordings of a decode call depend on, with the operation.
type decodeKey struct {
	b, hq, hkv, sq, capacity int
	tensors                  [5]tensorKey // Q, K, V, O, LSE
	vectors                  [3]tensorKey // KScale, VScale, the table of pages
	paged                    bool
	stride, pageSize, pages  int
}

// tensorKey is a tensor in device memory.
type tensorKey struct {
	buffer  *vk.Buffer
	offset  int64
	strides attention.Strides
}

// key returns the key of a call; ok is false for a call that is not recorded: one whose rows take several
// calls or a call that depends on the lengths, one without states in the host's memory, one in a stream
// whose observer is to see its dispatches, and one during another call.
func (d *decode) key(records bool) (key decodeKey, ok bool) {
	if !records || d.s == nil || d.s.Observed() || d.near == nil || d.Sq != 1 && d.cfg.Causal != attention.CausalNone {
		return key, false
	}
	key = decodeKey{b: d.B, hq: d.Hq, hkv: d.Hkv, sq: d.Sq, capacity: d.Capacity}
	for i, t := range [...]*attention.Tensor{&d.Q, &d.K, &d.V, &d.O, &d.LSE} {
		if t.Host != nil || t.Memory != nil {
			return key, false
		}
		key.tensors[i] = tensorKey{t.Buffer, t.Offset, t.Strides}
	}
	vectors := [...]attention.Vector{d.KScale, d.VScale, {}}
	if p := d.Pages; p != nil {
		key.paged, key.stride, key.pageSize, key.pages = true, p.Stride, p.PageSize, p.Count
		vectors[2] = p.Table
	}
	for i, v := range vectors {
		if v.Host != nil || v.Memory != nil {
			return key, false
		}
		key.vectors[i] = tensorKey{buffer: v.Buffer, offset: v.Offset}
	}
	return key, true
}

// recorded is a call that was recorded. Without recordings the call was seen once.
type recorded struct {
	states, lse  view          // of all ranks, in the memory of the recordings
	lengths      *vk.Buffer    // there too
	first, merge *vk.Recording // this rank's state; the merge of all
	refused      bool          // it cannot be recorded
}

// recordings are those of an operation. One call uses them at a time.
type recordings struct {
	mu     sync.Mutex
	calls  map[decodeKey]*recorded // at most maxRecordings
	memory [3]*vk.Buffer           // host-visible, of all recordings: states and LSE of all ranks, and lengths
	busy   bool                    // a call uses them
	closed bool
}

// maxRecordings bounds the recorded calls: one for each layer of a model, and more. Each has two command
// buffers. With one more all are dropped. Tests lower it.
var maxRecordings = 256

// enter reports whether a call may use the recordings. Then leave must follow.
func (x *recordings) enter() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.busy || x.closed {
		return false
	}
	x.busy = true
	return true
}

func (x *recordings) leave() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.busy = false
	if x.closed {
		return x.drop()
	}
	return nil
}

// close destroys the recordings, or has the call that uses them do so.
func (x *recordings) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	if x.busy {
		return nil
	}
	return x.drop()
}

// drop destroys all recordings and their memory. The caller uses them, or nobody does.
func (x *recordings) drop() error {
	var all []error
	for _, r := range x.calls {
		all = append(all, r.close())
	}
	all = append(all, closeAll(x.memory[:]))
	x.memory = [3]*vk.Buffer{}
	clear(x.calls)
	return errors.Join(all...)
}

// close destroys the recordings of a call, which stays one that was seen.
func (r *recorded) close() error {
	err := errors.Join(r.first.Close(), r.merge.Close())
	*r = recorded{refused: r.refused}
	return err
}

// find returns the recordings of a call that a stream can submit; nil: there are none.
func (x *recordings) find(s *vk.Stream, key *decodeKey) *recorded {
	r := x.calls[*key]
	if r == nil || !s.CanReplay(r.first) || !s.CanReplay(r.merge) {
		return nil
	}
	return r
}

// again returns the entry of a call that was seen before, without recordings. It is nil the first time,
// and for a call that cannot be recorded.
func (x *recordings) again(key *decodeKey) (*recorded, error) {
	if r := x.calls[*key]; r != nil {
		if r.refused {
			return nil, nil
		}
		return r, r.close()
	}
	var err error
	if len(x.calls) >= maxRecordings {
		err = x.drop()
	}
	if x.calls == nil {
		x.calls = map[decodeKey]*recorded{}
	}
	x.calls[*key] = &recorded{}
	return nil, err
}

// reserve makes the memory at least as large as a call needs. Recordings with the smaller memory cannot be
// submitted any more. Larger memory has at least twice the size, so that this happens seldom while batches
// grow.
func (x *recordings) reserve(dev *vk.Device, needed [3]int64) error {
	for i, n := range needed {
		old := x.memory[i]
		if old.Size() >= uint64(n) {
			continue
		}
		kind := vk.Readback
		if i == 2 {
			kind = vk.Upload
		}
		b, err := dev.NewBuffer(max(uint64(n), 2*old.Size()), vk.BufferOptions{Memory: kind})
		if err != nil {
			return err
		}
		x.memory[i] = b
		if err := old.Close(); err != nil {
			return err
		}
	}
	return nil
}

// record records a call that was seen before and whose arguments are checked. It returns nil where that
// is not possible: the call is then recorded into the stream, which reports what is wrong.
func (d *decode) record(op *Op, key *decodeKey) *recorded {
	x := &op.recordings
	r, err := x.again(key)
	if r == nil || err != nil {
		return nil
	}
	states := viewOf(attention.Tensor{}, attention.F32, d.shard.Ranks*d.B, d.Hq, d.Sq, d.cfg.ValueDim())
	lse := viewOf(attention.Tensor{}, attention.F32, d.shard.Ranks*d.B, d.Hq, d.Sq, 1)
	if err = x.reserve(d.s.Device(), [3]int64{states.bytes(), lse.bytes(), int64(4 * d.B)}); err == nil {
		states.Buffer, lse.Buffer = x.memory[0], x.memory[1]
		*r = recorded{states: states, lse: lse, lengths: x.memory[2]}
		r.first, r.merge, err = d.recordIn(op, r)
	}
	if err != nil {
		r.refused = true
		return nil
	}
	return r
}

// recordIn records the first pass and the merge of a call with the memory of r.
func (d *decode) recordIn(op *Op, m *recorded) (first, second *vk.Recording, err error) {
	local, err := op.of(d.stateConfig())
	if err != nil {
		return nil, nil, err
	}
	merge, err := op.merge(d.cfg.DType)
	if err != nil {
		return nil, nil, err
	}
	dev := d.s.Device()
	first, err = dev.Record(func(c *vk.Commands) error {
		o, lse := d.of(m.states, d.rank), d.of(m.lse, d.rank)
		return local.Record(c, d.arguments(0, d.Sq, attention.Vector{Buffer: m.lengths}, o.Tensor, lse.Tensor))
	})
	if err != nil {
		return nil, nil, err
	}
	second, err = dev.Record(func(c *vk.Commands) error {
		return merge.Record(c, d.mergeArguments(m.states, m.lse))
	})
	if err != nil {
		return nil, nil, errors.Join(err, first.Close())
	}
	return first, second, nil
}

// replay submits this rank's state of a recorded call.
func (d *decode) replay() (err error) {
	r := d.again
	to := r.lengths.Bytes()
	for b, n := range d.Tokens {
		binary.LittleEndian.PutUint32(to[4*b:], uint32(int32(d.shard.Count(d.rank, n))))
	}
	d.states, d.lse = r.states, r.lse
	d.begun, err = d.s.Replay(r.first)
	return err
}
