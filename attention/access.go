package attention

// Access is how kernels reach tensors.
type Access uint8

// Accesses. Addresses need bufferDeviceAddress and buffers that have one; they
// reach tensors of any size and need no descriptor set. Descriptors work
// everywhere; a binding spans at most maxStorageBufferRange bytes, so that
// larger problems are split by batch.
const (
	AccessAuto        Access = iota // addresses where device and buffers have them
	AccessAddresses                 // buffer device addresses only
	AccessDescriptors               // storage buffer descriptors only
)

var accessNames = []string{"auto", "addresses", "descriptors"}

// Valid reports whether a is one of the named accesses.
func (a Access) Valid() bool { return int(a) < len(accessNames) }

// String is "auto", "addresses" or "descriptors".
func (a Access) String() string { return nameOf("Access", accessNames, uint8(a)) }
