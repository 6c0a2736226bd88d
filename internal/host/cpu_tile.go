package host

import (
	"unsafe"

	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// cpuTile is the loop over the KV tiles of a sequence and key head. It gathers keys from
// any layout. Tiles begin at multiples of simd.Keys in the sequence, and in lists of sparse
// tokens at entries that depend on the list alone. So a row meets the same tiles in any
// block.
type cpuTile struct {
	call    *cpuCall
	b, kv   int
	lo, hi  int // keys that the block attends to
	at, end int // the next key of the sequence or entry of the list, and the end

	keys   []int32 // of the tile, in [lo, hi) if they are no sparse tokens
	buffer []int32
	loaded bool
	k, v   cpuRowsOf
}

// cpuRowsOf are the rows of K or V of a tile in float32: read in place if possible,
// otherwise converted into a buffer, bfloat16 to pairs where the kernels have them.
type cpuRowsOf struct {
	view   *tensors.KVView
	stored simd.Type
	host   []byte
	dim    int
	buffer []float32
	at     []int64
	scales []float32 // nil: none
	rows   unsafe.Pointer
	stride int // elements, or pairs
	least  int // exponent of pairs
}

func (t *cpuTile) init(call *cpuCall, keys int) {
	*t = cpuTile{call: call, buffer: make([]int32, keys)}
	t.k.init(&call.K, call.kPacked, call.Args.K.Host, call.Cfg.HeadDim, keys)
	t.v.init(&call.V, call.vPacked, call.Args.V.Host, call.Cfg.ValueDim(), keys)
}

func (r *cpuRowsOf) init(view *tensors.KVView, stored simd.Type, host []byte, dim, keys int) {
	*r = cpuRowsOf{view: view, stored: stored, host: host, dim: dim, at: make([]int64, keys)}
	if view.Scaled() {
		r.scales = make([]float32, keys)
	}
}

// begin restarts the loop for keys [lo, hi) of a sequence and key head, which the rows of a block attend to. With a list
// for each row the block has one row.
func (t *cpuTile) begin(b, kv, row, lo, hi int) {
	t.b, t.kv, t.lo, t.hi = b, kv, lo, hi
	t.at, t.end = lo/simd.Keys*simd.Keys, hi
	if t.call.Args.SparseTokens != nil && lo < hi {
		t.at, t.end = t.call.SparseList(b, kv, row)
	}
}

// next moves to the next tile; it returns false after the last.
func (t *cpuTile) next() bool {
	t.loaded = false
	sparse := t.call.Args.SparseTokens != nil
	for t.keys = t.buffer[:0]; t.at < t.end && len(t.keys) == 0; {
		end := min(t.at+simd.Keys, t.end)
		if sparse {
			end = t.wholeSums(end)
			t.readTokens(end)
		} else {
			for key := max(t.at, t.lo); key < min(end, t.hi); key++ {
				t.keys = append(t.keys, int32(key))
			}
		}
		t.at = end
	}
	return len(t.keys) > 0
}

// readTokens adds the keys of a list up to an entry, if the block attends to one of them. It adds those that the
// block does not attend to as well: between two others they end a sum of values, in whichever block.
func (t *cpuTile) readTokens(end int) {
	all, attended := t.call.Sequences[t.b].Keys, false
	for i := t.at; i < end; i++ {
		key := t.token(i)
		if key >= 0 && key < all {
			t.keys = append(t.keys, int32(key))
			attended = attended || key >= t.lo && key < t.hi
		}
	}
	if !attended {
		t.keys = t.keys[:0]
	}
}

func (t *cpuTile) token(entry int) int { return tensors.IntAt(&t.call.Args.SparseTokens.Tokens, entry) }

// wholeSums moves the end of a tile in a list back to between two sums of values, so that
// a list has the same sums as a mask of its keys.
func (t *cpuTile) wholeSums(end int) int {
	if end == t.end {
		return end
	}
	for e := end; e > t.at; e-- {
		if t.token(e-1)/simd.Summed != t.token(e)/simd.Summed {
			return e
		}
	}
	return end // the list is not sorted
}

// cut sets which keys of the tile the rows of a group attend to. It returns false if they
// attend to none.
func (t *cpuTile) cut(job *simd.Tile, g *cpuGroup) bool {
	first, n := int(t.keys[0]), len(t.keys)
	if t.call.Args.SparseTokens == nil {
		job.From, job.To = max(g.lo-first, 0), min(g.hi-first, n)
		job.FullFrom, job.FullTo = max(g.mostLo-first, job.From), min(g.leHi-first, job.To)
		return job.From < job.To
	}
	any, all := false, true
	for _, key := range t.keys {
		any = any || int(key) >= g.lo && int(key) < g.hi
		all = all && int(key) >= g.mostLo && int(key) < g.leHi
	}
	job.To = n
	if all {
		job.FullTo = n
	}
	return any
}

// load reads the rows of K and V of the tile, once per tile.
func (t *cpuTile) load() {
	if !t.loaded {
		t.k.load(t)
		t.v.load(t)
		t.loaded = true
	}
}

func (r *cpuRowsOf) load(t *cpuTile) {
	f32 := r.stored == simd.F32
	if f32 && t.call.Args.Pages == nil && t.call.Args.SparseTokens == nil {
		batch, row := t.call.KVRow(t.b, int(t.keys[0]))
		if r.inPlace(r.view.ByteOf(batch, t.kv, row), r.view.Rows.Strides.Seq*4) {
			return
		}
	}
	at := r.locate(t)
	if f32 && equalDistances(at) && r.inPlace(at[0], at[min(1, len(at)-1)]-at[0]) {
		return
	}
	if r.buffer == nil {
		r.buffer = make([]float32, len(r.at)*r.dim)
	}
	r.least = Kernels.Widen(r.buffer, r.host, at, r.scales, r.dim, r.stored)
	r.rows, r.stride = unsafe.Pointer(unsafe.SliceData(r.buffer)), r.dim
	if r.stored == simd.Pairs {
		r.stride = (r.dim + 1) / 2
	}
}

// locate returns the byte offsets of the tile's rows and reads their scales.
func (r *cpuRowsOf) locate(t *cpuTile) []int64 {
	at := r.at[:len(t.keys)]
	if t.call.Args.Pages == nil && r.scales == nil {
		batch, row := t.call.KVRow(t.b, 0)
		first, distance := r.view.Rows.Element(batch, t.kv, row), r.view.Rows.Strides.Seq
		for i, key := range t.keys {
			at[i] = r.view.Byte(first + int64(key)*distance)
		}
		return at
	}
	for i, key := range t.keys {
		batch, row := t.call.KVRow(t.b, int(key))
		at[i] = r.view.ByteOf(batch, t.kv, row)
		if r.scales != nil {
			r.scales[i] = r.view.Scale(batch, t.kv, row)
		}
	}
	return at
}

func equalDistances(at []int64) bool {
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-1] != at[1]-at[0] {
			return false
		}
	}
	return true
}

// inPlace uses float32 rows in place if they are aligned and close to each other. Rows at
// multiples of 4 KiB share a set of the first-level cache: copying them first was 15 %
// faster at head dim 128 on an Ice Lake server, and 8 % slower for consecutive rows.
func (r *cpuRowsOf) inPlace(first, distance int64) bool {
	const near = 4096
	p := unsafe.Pointer(&r.host[first])
	if uintptr(p)%4 != 0 || distance%4 != 0 || distance <= -near || distance >= near {
		return false
	}
	r.rows, r.stride = p, int(distance/4)
	return true
}
