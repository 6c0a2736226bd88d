package shaders

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"sync"

	"vkattn/attention/score"
)

// Where modules with descriptors have the tables of modifiers: parameters in shaders/interface.glsl and
// backward_interface.glsl, and bindings behind that of the parameters. Modules with addresses have no other descriptors: binding 0
// has the sizes of the tables.
const (
	ParamsBinding         = 17
	BackwardParamsBinding = 15
	tablesOffset          = 256
)

// modified has modules with modifiers. A program has few of them; one that makes more begins anew.
var modified struct {
	sync.Mutex
	made map[modifiedKey]*Module
}

type modifiedKey struct {
	hash      [32]byte
	modifiers score.Modifiers
}

// Modified is the module with modifiers in place of its own functions, as score.Rewrite writes them. It is made once.
// Safe for concurrent use.
func (m *Module) Modified(modifiers score.Modifiers) (*Module, error) {
	if modifiers == (score.Modifiers{}) {
		return m, nil
	}
	modified.Lock()
	defer modified.Unlock()
	key := modifiedKey{m.Hash, modifiers}
	if found := modified.made[key]; found != nil {
		return found, nil
	}
	params := uint32(ParamsBinding)
	if strings.HasPrefix(m.Name, "backward_") {
		params = BackwardParamsBinding
	}
	at := score.TableLayout{ParamsBinding: params, ParamsOffset: tablesOffset, FirstBinding: params + 1}
	if strings.HasSuffix(m.Name, "_bda") {
		at = score.TableLayout{FirstBinding: 1, NumbersAlone: true}
	}
	code, err := score.Rewrite(m.Code, modifiers, at)
	if err != nil {
		return nil, err
	}
	if modified.made == nil || len(modified.made) >= 256 {
		modified.made = map[modifiedKey]*Module{}
	}
	made := &Module{Name: m.Name, Code: code, Hash: sha256.Sum256(code)}
	modified.made[key] = made
	return made, nil
}

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
