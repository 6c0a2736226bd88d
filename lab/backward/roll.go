package main

import "encoding/binary"

// rolled turns requests to unroll loops into requests not to, for drivers on the CPU.
func rolled(code []byte) []byte {
	out := append([]byte(nil), code...)
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(out[4*i:]) }
	for i := 5; i < len(out)/4; i += int(word(i) >> 16) {
		if word(i)&0xffff == 246 && word(i+3)&1 != 0 {
			binary.LittleEndian.PutUint32(out[4*(i+3):], word(i+3)&^1|2)
		}
	}
	return out
}
