package cudapath

import (
	"math"
	"slices"
	"unsafe"
)

// cubinFamily is the family of the kernels that Vulkan launches in its command buffers
// (VK_NVX_binary_import, vk.Device.NewCubin). No CUDA context is involved, and no Context
// chooses them.
const cubinFamily = "cubin"

// cubin finds the kernel of cubinFamily for a storage type, head dims and a mask, nil
// without one. Equal head dims of K and V, in units of 16 bytes, are needed.
func (t *table) cubin(dtype string, d, dv int, causal bool) *Kernel {
	const unit = 8 // elements
	i := slices.IndexFunc(t.cubins, func(k Kernel) bool {
		return k.DType == dtype && k.Causal == causal && d <= k.D && dv <= k.DV && d%unit == 0 && dv%unit == 0
	})
	if i < 0 {
		return nil
	}
	return &t.cubins[i]
}

// cubinImage reads the cubin of a kernel of cubinFamily.
func (t *table) cubinImage(k *Kernel) ([]byte, error) {
	image, err := t.image(k.Module, &DeviceInfo{Major: 9})
	if err != nil {
		return nil, err
	}
	return image[:len(image)-1], nil // without the NUL for CUDA
}

// cubinParams mirrors AttnParams of kernels/attn.h.
type cubinParams struct {
	q, k, v, o                tensorParams
	lse                       uint64
	b, hq, hkv, sq, sk, d, dv int32
	causalOffset              int32
	scale, scaleLog2          float32
	unitHigh, unitLow         float32
}

// leastScaleLog2 stands for smaller scales in log2 units: kernels multiply masked scores,
// which are -Inf, by it.
const leastScaleLog2 = 0x1p-100

// setScale sets scale and what follows from it.
func (p *cubinParams) setScale(scale float32) {
	p.scale = scale
	log2, unit := float64(scale)*math.Log2E, math.Ln2
	if math.Abs(log2) < leastScaleLog2 {
		p.scaleLog2 = float32(math.Copysign(leastScaleLog2, log2))
	} else {
		p.scaleLog2 = float32(log2)
		unit = math.Abs(float64(scale)) / math.Abs(float64(p.scaleLog2))
	}
	p.unitHigh = float32(unit)
	p.unitLow = float32(unit - float64(p.unitHigh))
}

// bytes are the parameters as a launch takes them; they share p's memory.
func (p *cubinParams) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}
