package main

import (
	"encoding/binary"
	"errors"
)

const spirvHeaderBytes = 20

// debugOps are the instructions of SPIR-V that only a debugger reads: where the
// source is, what its identifiers are called, and which tools processed it.
var debugOps = map[uint32]string{
	2: "OpSourceContinued", 3: "OpSource", 4: "OpSourceExtension", 5: "OpName", 6: "OpMemberName",
	7: "OpString", 8: "OpLine", 317: "OpNoLine", 330: "OpModuleProcessed",
}

var errNotSPIRV = errors.New("not a SPIR-V module")

// stripDebug returns the module without its debug instructions. glslang numbers
// ids in the order of the code, whatever the names, so that sources which differ
// in names, comments and line breaks alone give the same bytes. Nothing keeps its
// name: the host knows specialization constants by their ids, bindings by their
// numbers and members of blocks by their offsets.
func stripDebug(code []byte) ([]byte, error) {
	if len(code) < spirvHeaderBytes || len(code)%4 != 0 {
		return nil, errNotSPIRV
	}
	out := append(make([]byte, 0, len(code)), code[:spirvHeaderBytes]...)
	for rest := code[spirvHeaderBytes:]; len(rest) > 0; {
		word := binary.LittleEndian.Uint32(rest)
		op, size := word&0xffff, 4*int(word>>16)
		if size == 0 || size > len(rest) {
			return nil, errNotSPIRV
		}
		if _, debug := debugOps[op]; !debug {
			out = append(out, rest[:size]...)
		}
		rest = rest[size:]
	}
	return out, nil
}
