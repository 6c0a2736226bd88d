package accuracy

import (
	"runtime"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// roomFloor: less memory is taken without asking for what is available.
const roomFloor = 64 << 20

// room refuses work that does not fit the host's memory: n rows of O and LSE, of elements
// of the given size, and the scratch memory of the workers. The error matches
// vk.ErrOutOfMemory.
func room(op string, cfg attention.Config, a attention.Args, n, size int) error {
	outputs := hostmem.Product(n, cfg.ValueDim()+1, size)
	const perKey, growth = 4 + 4, 2 // a score and an entry, as slices that grow
	scratch := hostmem.Product(min(runtime.GOMAXPROCS(0), n), lowRows(&a), mostKeys(&a), perKey*growth)
	needed := hostmem.Sum(outputs, scratch, hostmem.Product(a.B, 32))
	if needed < roomFloor {
		return nil
	}
	return vk.CheckHostMemory(op, needed)
}
