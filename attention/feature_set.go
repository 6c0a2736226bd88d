package attention

import (
	"fmt"
	"math"

	"vkattn/shaders"
	"vkattn/vk"
)

// options is what a kernel must have of the features, as a value: part of the
// key of a pipeline. The zero value has none; such a kernel is another module,
// which nothing of this costs anything.
type options struct {
	packRows         uint32 // heads of a group, if they are rows side by side; else 0
	lengths          uint32 // sum of lengthCuQ and so on
	pageSize         uint32
	kept             bool
	mapRows, mapKeys uint32 // block sizes of the bitmap
	window           uint32 // sum of windowLeft and windowRight
	softcap          bool
	alibi, sinks     bool
	bias             uint32 // biasF16 and so on; 0: none
	mask             bool
	kv               KVType
	kvBlock          uint32
	split            bool // states are written, for a merge
	combined         bool // by the same kernel

	shortRows uint32 // not 0: sequences of at most this many rows are computed by another dispatch than the others
	ownsShort bool   // this one computes them
}

const (
	lengthCuQ = 1 << iota
	lengthUsedQ
	lengthCuK
	lengthUsedK
)

const (
	windowLeft = 1 << iota
	windowRight
)

// any reports whether the kernel is one of the module with features.
func (f options) any() bool { return f != options{} }

// features are those that a call asks for; how rows are packed and keys split is
// decided with the tile.
func (a *Args) options(cfg *Config) (f options) {
	if w := cfg.Window; w.Given() {
		f.window = windowLeft*boolConstant(w.left >= 0) + windowRight*boolConstant(w.right >= 0)
	}
	f.softcap = cfg.Softcap != 0
	if !a.featured(cfg) {
		return f
	}
	if v := a.Varlen; v != nil {
		f.lengths = lengthCuQ*boolConstant(v.CuQ.Given()) + lengthUsedQ*boolConstant(v.UsedQ.Given()) +
			lengthCuK*boolConstant(v.CuK.Given()) + lengthUsedK*boolConstant(v.UsedK.Given())
	}
	if a.Pages != nil {
		f.pageSize = uint32(a.Pages.PageSize)
	}
	f.kept = a.Kept != nil
	if a.Blocks != nil {
		f.mapRows, f.mapKeys = uint32(a.Blocks.BlockQ), uint32(a.Blocks.BlockK)
	}
	f.alibi, f.sinks, f.mask = a.ALiBi.Given(), a.Sinks.Given(), a.Mask != nil
	if a.Bias != nil {
		f.bias = 1 + uint32(a.Bias.DType)
	}
	if f.kv = cfg.KV; f.kv.Scaled() {
		f.kvBlock = uint32(max(cfg.KVBlock, 1))
	}
	return f
}

// constants adds those of the features.
func (f options) constants(c map[uint32]uint32) {
	c[shaders.ConstPackedRows] = f.packRows
	c[shaders.ConstLengths] = f.lengths
	c[shaders.ConstPageSize] = f.pageSize
	c[shaders.ConstKept] = boolConstant(f.kept)
	c[shaders.ConstMapRows], c[shaders.ConstMapKeys] = f.mapRows, f.mapKeys
	c[shaders.ConstWindow] = f.window
	c[shaders.ConstSoftcap] = boolConstant(f.softcap)
	c[shaders.ConstAlibi] = boolConstant(f.alibi)
	c[shaders.ConstSinks] = boolConstant(f.sinks)
	c[shaders.ConstBias] = f.bias
	c[shaders.ConstMask] = boolConstant(f.mask)
	c[shaders.ConstKvType] = uint32(f.kv)
	c[shaders.ConstKvBlock] = max(f.kvBlock, 1)
	c[shaders.ConstSplit] = boolConstant(f.split)
	c[shaders.ConstCombine] = boolConstant(f.combined)
	c[shaders.ConstShortRows] = f.shortRows
	c[shaders.ConstOwnsShort] = boolConstant(f.ownsShort)
}

// modifies reports whether scores are more than the scaled product.
func (f options) modifies() bool { return f.softcap || f.alibi || f.bias != 0 }

// natural reports whether scores are natural exponents, and not those of two.
func (f options) natural() bool { return f.alibi || f.bias != 0 }

// The parameters and the bindings of modules with features. Where the push constants
// do not hold the parameters, a buffer does, the last binding of all.
const (
	generalPushBytes = 256
	generalBindings  = 17
	paramsBinding    = generalBindings
)

// paramsInBuffer reports whether modules with features read their parameters from a
// buffer: 128 bytes of push constants are all that Vulkan promises before 1.4. Such
// modules reach everything through descriptors.
func paramsInBuffer(l *vk.Limits) bool { return l.MaxPushConstantBytes < generalPushBytes }

// generalFits checks modules with features against a device's limits.
func generalFits(l *vk.Limits, access Access) string {
	bindings, instead := uint32(generalBindings), "; buffers with device addresses need none"
	if paramsInBuffer(l) {
		if access == AccessAddresses {
			return fmt.Sprintf("the device has %d bytes of push constants, with addresses what the call asks for takes %d; descriptors need none",
				l.MaxPushConstantBytes, generalPushBytes)
		}
		bindings, instead = bindings+1, ""
	}
	if access == AccessDescriptors && l.MaxStorageBuffers < bindings {
		return fmt.Sprintf("the device binds %d buffers, what the call asks for takes %d%s", l.MaxStorageBuffers, bindings, instead)
	}
	return ""
}

// maxGeneralLength bounds Sq and Sk of calls with options: positions and windows
// are added up in 32 bits.
const maxGeneralLength = 1 << 30

// maxWindow is a side of a window that excludes nothing of sequences within maxGeneralLength,
// whatever the row's position, and which positions may be added to in 32 bits.
const maxWindow = maxGeneralLength - 1

// optionLimits reports what the 32-bit numbers of kernels with features cannot
// hold.
func (a *Args) optionLimits(f options, splits int, dv int) error {
	batches, rows := a.rowPlaces()
	all, ok := product(batches, a.Hq, rows)
	switch {
	case a.Sq > maxGeneralLength || a.Sk > maxGeneralLength:
		return fmt.Errorf("%w: Sq %d and Sk %d; what the call asks for reaches to 2^30", ErrUnsupported, a.Sq, a.Sk)
	case !ok || all > math.MaxUint32/int64(max(splits, 1)):
		return fmt.Errorf("%w: %d x %d x %d rows in %d parts; what the call asks for reaches to 2^32 rows", ErrUnsupported, batches, a.Hq, rows, splits)
	case f.split && all*int64(dv) > math.MaxUint32:
		return fmt.Errorf("%w: %d rows of %d elements; parts of keys reach to 2^32 elements", ErrUnsupported, all, dv)
	case f.kept && int64(a.Kept.Total) > maxGeneralLength:
		return fmt.Errorf("%w: %d kept tokens, 2^30 are possible", ErrUnsupported, a.Kept.Total)
	}
	if a.Bias != nil {
		if err := below32("Bias", a.Bias.resolve(a.Shape), [3]int{a.B, a.Hq, a.Sq}, a.Sk); err != nil {
			return err
		}
	}
	if a.Mask != nil {
		if err := below32("Mask", a.Mask.resolve(a.Shape), [3]int{a.B, a.Hq, a.Sq}, a.Sk); err != nil {
			return err
		}
	}
	return nil
}

// below32 refuses a tensor whose positions do not fit 32 bits.
func below32(field string, steps [3]int64, counts [3]int, dim int) error {
	end := int64(dim)
	for i, n := range counts {
		far, ok := mul(int64(n-1), steps[i])
		if ok {
			end, ok = add(end, far)
		}
		if !ok || end > math.MaxUint32 {
			return fmt.Errorf("%w: %s spans 2^32 elements or more", ErrUnsupported, field)
		}
	}
	return nil
}
