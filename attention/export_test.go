package attention

import "time"

// For tests outside of the package, which may import accuracy and inputs.
var (
	ForwardCPU = forwardCPU
	Expf       = expf
)

// CompileTime is how long the driver took for an operation's pipelines.
func CompileTime(op *Op) (d time.Duration) {
	op.mu.RLock()
	defer op.mu.RUnlock()
	for _, p := range op.pipelines {
		d += p.CompileTime()
	}
	return d
}
