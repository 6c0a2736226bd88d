package shaders

import (
	"crypto/sha256"
	"encoding/binary"
)

// Rolled is the same module with every request to unroll a loop turned into one
// not to. A GPU needs register arrays indexed by constants and the unrolled
// loops that give them; a driver that runs on the CPU keeps such arrays in
// memory anyway, and compiles the unrolled kernel for minutes where the rolled
// one takes a second (lavapipe, head dim 64, 64x32: over 100 s and 1 s). The
// instructions and their results are the same. Computed once; safe for
// concurrent use.
func (m *Module) Rolled() *Module {
	m.rolledOnce.Do(func() {
		code := rollLoops(m.Code)
		m.rolled = &Module{Name: m.Name, Code: code, Hash: sha256.Sum256(code)}
	})
	return m.rolled
}

const (
	opLoopMerge      = 246 // merge block, continue target, loop control, ...
	loopUnroll       = 1
	loopDontUnroll   = 2
	headerWords      = 5
	loopControlIndex = 3
)

func rollLoops(code []byte) []byte {
	out := append([]byte(nil), code...)
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(out[4*i:]) }
	n := len(out) / 4
	for i := headerWords; i < n; {
		length, op := int(word(i)>>16), word(i)&0xffff
		if length == 0 || i+length > n {
			break // not SPIR-V; whoever creates the pipeline says so
		}
		if op == opLoopMerge && length > loopControlIndex {
			if control := word(i + loopControlIndex); control&loopUnroll != 0 {
				binary.LittleEndian.PutUint32(out[4*(i+loopControlIndex):], control&^loopUnroll|loopDontUnroll)
			}
		}
		i += length
	}
	return out
}
