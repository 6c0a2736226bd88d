package attention

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Sequence is the range of rows and the range of keys of one sequence.
type Sequence struct {
	Row, Rows int // first row in Q and O (0 unless packed by Varlen.CuQ) and number of rows
	Key, Keys int // first row in K and V (0 unless packed by Varlen.CuK) and number of keys
}

// Sequences returns the sequences of a call. Varlen, if given, must be in host memory.
// Numbers out of range are read as kernels read them: starts and ends are clamped to
// the packed tensor, lengths to 0..Sq and 0..Sk.
func Sequences(a Args) ([]Sequence, error) {
	if err := a.Shape.Validate(); err != nil {
		return nil, err
	}
	if err := checkHost("Sequences", a.sequenceBytes()); err != nil {
		return nil, err
	}
	if a.Varlen != nil {
		if err := a.Varlen.check(); err != nil {
			return nil, err
		}
		var e optionTensors
		e.setVarlen(a.Varlen, a.B)
		for i := range e.all() {
			if err := e.list[i].checkGiven(); err != nil {
				return nil, err
			}
			if e.list[i].tensor.Buffer != nil {
				return nil, fmt.Errorf("%w: %s is not in host memory", ErrUnsupported, e.list[i].field)
			}
			if err := e.list[i].checkBounds(); err != nil {
				return nil, err
			}
		}
	}
	return a.sequences(), nil
}

// sequences is Sequences of checked arguments in host memory.
func (a *Args) sequences() []Sequence {
	list := make([]Sequence, a.B)
	for b := range list {
		s := Sequence{Rows: a.Sq, Keys: a.Sk}
		if v := a.Varlen; v != nil {
			s.Row, s.Rows = sequenceRange(v.CuQ, v.UsedQ, v.TotalQ, a.Sq, b)
			s.Key, s.Keys = sequenceRange(v.CuK, v.UsedK, v.TotalK, a.Sk, b)
		}
		list[b] = s
	}
	return list
}

// sequenceRange returns the first row and the length of sequence b.
func sequenceRange(cu, used Vector, total, most, b int) (first, n int) {
	n = most
	if cu.Given() {
		first = min(max(cu.hostInt(b), 0), total)
		n = min(n, min(max(cu.hostInt(b+1), 0), total)-first)
	}
	if used.Given() {
		n = min(n, used.hostInt(b))
	}
	return first, max(n, 0)
}

// ExistingRows is the sample of all rows that exist in a call, in the order of
// [AllRows]. Empty sequences contribute none. Lengths must be in host memory, as for
// [Sequences].
func ExistingRows(a Args) ([]Rows, error) {
	sequences, err := Sequences(a)
	if err == nil {
		err = checkHost("ExistingRows", a.listBytes())
	}
	if err != nil {
		return nil, err
	}
	rows := make([]int, a.Sq)
	for i := range rows {
		rows[i] = i
	}
	var sample []Rows
	for b, s := range sequences {
		for h := range a.Hq {
			if s.Rows > 0 {
				sample = append(sample, Rows{b, h, rows[:s.Rows]})
			}
		}
	}
	return sample, nil
}

// hostInt returns an element of an int32 vector in host memory.
func (v *Vector) hostInt(i int) int {
	return int(int32(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):])))
}

func (v *Vector) hostFloat(i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
}

// Rows names some query rows of one (batch, query head), in any order.
type Rows struct {
	B, H int
	Rows []int
}
