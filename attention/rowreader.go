package attention

import (
	"fmt"
	"math"

	"vkattn/attention/half"
)

// Featured reports whether a call has any of the features that Config.Window,
// Softcap and KV and the fields of Args after LSE stand for.
func Featured(cfg Config, a Args) bool { return a.featured(&cfg) || cfg.modifies() }

// RowReader reads what goes into single rows of a call in host memory, and what came
// out, wherever it lies: row and key numbers count from the start of sequence b.
// It may be used by many goroutines.
type RowReader struct {
	call hostCall
	cfg  Config
	a    Args
	o    HostView
}

// NewRowReader makes a reader of a call that CheckArgs accepts but for O and LSE,
// which may be left out.
func NewRowReader(cfg Config, a Args) (*RowReader, error) {
	if err := checkInputs(cfg, a); err != nil {
		return nil, err
	}
	r := &RowReader{cfg: cfg, a: a}
	if err := r.call.open(&r.cfg, &r.a); err != nil {
		return nil, err
	}
	if !a.O.Given() {
		return r, nil
	}
	if err := CheckArgs(cfg, a); err != nil {
		return nil, err
	}
	_, rows := a.rowPlaces()
	var err error
	r.o, err = ViewHost(a.O, cfg.DType, a.Hq, rows, cfg.ValueDim())
	return r, err
}

// Sequence is where sequence b lies.
func (r *RowReader) Sequence(b int) Sequence { return r.call.sequences[b] }

// AppendKeys appends the keys that a row attends to, in the order of the list of
// kept tokens where there is one and ascending otherwise. The row exists.
func (r *RowReader) AppendKeys(keys []int, b, h, row int) []int {
	return r.call.visible(keys, b, h, row)
}

// ReadQ widens a row of Q into dst.
func (r *RowReader) ReadQ(dst []float32, b, h, row int) {
	batch, at := r.call.placeRow(b, row)
	r.call.q.ReadRow(dst, batch, h, at)
}

// ReadK reads a row of K as query head h sees it, dequantised in float32.
func (r *RowReader) ReadK(dst []float32, b, h, key int) { r.read(dst, &r.call.k, b, h, key) }

// ReadV reads a row of V as query head h sees it, dequantised in float32.
func (r *RowReader) ReadV(dst []float32, b, h, key int) { r.read(dst, &r.call.v, b, h, key) }

func (r *RowReader) read(dst []float32, v *kvView, b, h, key int) {
	batch, at := r.call.placeKey(b, key)
	readScaled(dst[:v.rows.dim], v, batch, h/r.a.Group(), at)
}

// ReadAddends puts what is added to the scores of a row at some keys into dst: the
// bias less the slope times the distance.
func (r *RowReader) ReadAddends(dst []float32, b, h, row int, keys []int) {
	dst = dst[:len(keys)]
	clear(dst)
	if r.a.Bias != nil {
		r.call.readBias(dst, b, h, row, keys)
	}
	if r.a.ALiBi.Given() {
		slope, at := r.call.slope(h), r.call.position(b, row)
		for i, key := range keys {
			dst[i] -= slope * float32(max(at-int64(key), int64(key)-at))
		}
	}
}

// Sink is the logit of a head, -Inf for none.
func (r *RowReader) Sink(h int) float32 {
	if x, ok := r.call.sink(h); ok {
		return x
	}
	return float32(math.Inf(-1))
}

// ReadO widens a row of O into dst.
func (r *RowReader) ReadO(dst []float32, b, h, row int) error {
	if !r.a.O.Given() {
		return fmt.Errorf("%w: the call has no O", ErrUnsupported)
	}
	batch, at := r.call.placeRow(b, row)
	r.o.ReadRow(dst, batch, h, at)
	return nil
}

// ReadLSE is the LSE of a row.
func (r *RowReader) ReadLSE(b, h, row int) (float32, error) {
	if !r.a.O.Given() || !r.a.LSE.Given() {
		return 0, fmt.Errorf("%w: the call has no LSE", ErrUnsupported)
	}
	batch, at := r.call.placeRow(b, row)
	_, rows := r.a.rowPlaces()
	var lse [1]float32
	half.DecodeF32(lse[:], r.a.LSE.Host[4*(r.a.LSE.Offset+(int64(batch)*int64(r.a.Hq)+int64(h))*int64(rows)+int64(at)):])
	return lse[0], nil
}
