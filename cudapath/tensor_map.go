package cudapath

import (
	"encoding/binary"
	"fmt"
)

// tensorMap is the parameter by which a kernel copies boxes of a tensor with the tensor
// memory accelerator of sm_90.
//
// cuTensorMapEncodeTiled writes these 128 bytes, and needs a CUDA context for it. Kernels
// that Vulkan launches have none. The PTX instruction tensormap.replace sets the fields one
// by one; for sm_90a the assembler turns it into plain stores, which show where each field
// lies (docs/log/cubin.md). A test on a GPU compares with cuTensorMapEncodeTiled.
//
//	byte 0   the address, 64 bits
//	byte 8   bits 4-6 rank - 1, 7-10 element type, 11-12 interleave, 13-14 swizzle, 15 fill with NaN
//	byte 12  strides of dimensions 1 to 4 in units of 16 bytes, low 32 bits of each
//	byte 28  their bits 32 to 35, 4 bits each
//	byte 32  sizes of dimensions 0 to 4, less 1, 32 bits each
//	byte 52  element strides, less 1, 3 bits each; bits 24-31 the box of dimension 0, less 1
//	byte 56  the box of dimensions 1 to 4, less 1, 8 bits each
type tensorMap [128]byte

// tensorMapRank is the number of dimensions of every map here: dim, row, head, batch.
const tensorMapRank = 4

// tensorMapSpec describes a tensor of 16-bit elements whose copies are in the 128-byte
// swizzle, with zeros for what is outside of it.
type tensorMapSpec struct {
	address uint64                    // a multiple of 16
	sizes   [tensorMapRank]uint64     // at least 1
	strides [tensorMapRank - 1]uint64 // bytes of dimensions 1 to 3, multiples of 16; the stride of a dimension of size 1 is not used
	box     [tensorMapRank]uint32     // 1 to 256
}

// Fields of the words at byte 8 and 52.
const (
	mapRankShift, mapTypeShift, mapSwizzleShift = 4, 7, 13
	mapTypeF16                                  = 6 // moves any 16 bits
	mapSwizzle128                               = 3
	mapBoxShift                                 = 24
	mapStrideUnit                               = 16
	mapStrideBits                               = 36
)

// encode writes the map. It refuses what the fields cannot hold.
func (s *tensorMapSpec) encode(m *tensorMap) error {
	if s.address%mapStrideUnit != 0 {
		return fmt.Errorf("tensor map: address %#x is no multiple of %d", s.address, mapStrideUnit)
	}
	*m = tensorMap{}
	put := func(at int, x uint32) { binary.LittleEndian.PutUint32(m[at:], x) }
	binary.LittleEndian.PutUint64(m[0:], s.address)
	put(8, (tensorMapRank-1)<<mapRankShift|mapTypeF16<<mapTypeShift|mapSwizzle128<<mapSwizzleShift)
	var high, boxes uint32
	for i, n := range s.sizes {
		if n < 1 || n > 1<<32 || s.box[i] < 1 || s.box[i] > 256 {
			return fmt.Errorf("tensor map: dimension %d has size %d and box %d", i, n, s.box[i])
		}
		put(32+4*i, uint32(n-1))
		if i == 0 {
			continue
		}
		boxes |= (s.box[i] - 1) << (8 * (i - 1))
		units := s.strides[i-1] / mapStrideUnit
		if n == 1 {
			units = 1
		} else if s.strides[i-1]%mapStrideUnit != 0 || units >= 1<<mapStrideBits {
			return fmt.Errorf("tensor map: stride of %d bytes", s.strides[i-1])
		}
		put(12+4*(i-1), uint32(units))
		high |= uint32(units>>32) << (4 * (i - 1))
	}
	put(28, high)
	put(52, (s.box[0]-1)<<mapBoxShift)
	put(56, boxes)
	return nil
}
