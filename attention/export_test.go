package attention

// For tests outside of the package, which may import accuracy and inputs.
var (
	ForwardCPU = forwardCPU
	Expf       = expf
)
