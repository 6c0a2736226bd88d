package shaders

import (
	"crypto/sha256"
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
