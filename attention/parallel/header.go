package parallel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The header of a call: what ranks compare before they move tensors.

// callKind is the method that a rank called.
type callKind uint8

const (
	callBarrier callKind = iota
	callForward
	callBackward
	callDecode
)

func (k callKind) String() string { return [...]string{"Barrier", "Forward", "Backward", "Decode"}[k] }

// headerFields names what ranks agree on, in the order in which differences are reported.
var headerFields = [...]string{"version", "method", "number of calls so far", "Config", "Mode, Order or Schedule",
	"Shape", "cu_seqlens or lengths", "Split"}

// headerVersion changes with the protocol between ranks.
const headerVersion = 9

// header describes a call by checksums.
type header struct {
	kind                                  callKind
	number                                uint64
	config, mode, shape, sequences, split uint64
	lse                                   bool   // this rank asks for LSE; the others need not
	reach                                 uint64 // bytes of a tensor that this rank's kernels reach
}

// Numbers of an encoded header: those of headerFields, and two that may differ. Then comes the reason of a
// rank that cannot take part.
const (
	headerLSE   = len(headerFields) // 1: this rank asks for LSE
	headerReach = headerLSE + 1
	headerBytes = 8 * (headerReach + 1)
	maxReason   = 400
)

// encode returns the header, followed by the reason why this rank cannot take part.
func (h *header) encode(invalid error) []byte {
	numbers := [headerReach + 1]uint64{headerVersion, uint64(h.kind), h.number, h.config, h.mode, h.shape,
		h.sequences, h.split, headerReach: h.reach}
	if h.lse {
		numbers[headerLSE] = 1
	}
	b := make([]byte, 0, headerBytes)
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	if invalid != nil {
		text := invalid.Error()
		b = append(b, text[:min(len(text), maxReason)]...)
	}
	return b
}

// number is a number of an encoded header.
func number(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

// asksForLSE tells of each rank that agreed on a call whether it asks for LSE.
func asksForLSE(all [][]byte) []bool {
	list := make([]bool, len(all))
	for r, b := range all {
		list[r] = number(b, headerLSE) != 0
	}
	return list
}

// commonReach is the number of bytes of a tensor that the kernels of all ranks reach.
func commonReach(all [][]byte) uint64 {
	reach := uint64(everywhere)
	for _, b := range all {
		reach = min(reach, number(b, headerReach))
	}
	return reach
}

// disagreement names the first rank that cannot take part, or else the first one whose header
// differs from that of most ranks. With as many ranks on either side, rank 0's side is right.
func disagreement(all [][]byte) error {
	const size = headerBytes
	same := len(all) > 0 && len(all[0]) == size
	for r := 1; same && r < len(all); r++ {
		same = bytes.Equal(all[r], all[0])
	}
	if same {
		return nil // always, but for errors
	}
	for r, b := range all {
		switch {
		case len(b) < size:
			return &RankError{r, fmt.Errorf("%w: a header of %d bytes, want %d", ErrMismatch, len(b), size)}
		case len(b) > size:
			text := strings.ToValidUTF8(string(b[size:]), "?")
			return &RankError{r, fmt.Errorf("%w: %w", ErrFailed, errors.New(text))}
		}
	}
	for i, name := range headerFields {
		votes := map[uint64]int{}
		value := func(r int) uint64 { return number(all[r], i) }
		for r := range all {
			votes[value(r)]++
		}
		right := value(0)
		for r := range all {
			if v := value(r); votes[v] > votes[right] {
				right = v
			}
		}
		for r := range all {
			if value(r) != right {
				return &RankError{r, fmt.Errorf("%w on the %s", ErrMismatch, name)}
			}
		}
	}
	return nil
}
