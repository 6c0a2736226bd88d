package problem

import (
	"vkattn/internal/enum"
)

// Access selects how kernels reach tensors.
type Access uint8

// Accesses.
const (
	AccessAuto        Access = iota // addresses if the device and the buffers have them
	AccessAddresses                 // buffer device addresses only
	AccessDescriptors               // storage buffer descriptors only
)

var accessNames = []string{"auto", "addresses", "descriptors"}

// Valid reports whether a is one of the named accesses.
func (a Access) Valid() bool { return int(a) < len(accessNames) }

// String is "auto", "addresses" or "descriptors".
func (a Access) String() string { return enum.Name("Access", accessNames, uint8(a)) }
