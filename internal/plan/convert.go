package plan

import (
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Quantized K and V of a call with many rows. A kernel that reads them converts each element once for each row block.
// Instead shaders/convert.comp converts all of them once, to scratch memory, and the call is computed as one whose K and V
// are stored as Q, on any tier.

const (
	ConvertKeys  = 32      // of a workgroup: KEYS in convert.comp
	convertLocal = 128     // invocations
	convertDim   = 256     // the largest head dim
	convertMost  = 1 << 30 // bytes of scratch memory, and at most an eighth of the device's
)

// What decides, from an H200 (docs/log/vulkan.md, 82): the time of another dispatch and a barrier in us, and the elements
// of K and V that the kernels of tier coopmat2 convert in a us, in row blocks of convertRows rows.
const (
	convertLaunch   = 5.0
	convertRows     = 256
	convertElements = 1e6
)

// Conversion is how K and V of a call are converted, and the key of the pipeline. Zero: they are not.
type Conversion struct {
	module    string
	options   Options
	align     [2]uint32 // of K and V
	dtype     problem.DType
	dim, dimV uint32
}

// Given reports whether K and V are converted.
func (v Conversion) Given() bool { return v.module != "" }

// Options are those of the call that the kernel takes.
func (v Conversion) Options() Options { return v.options }

// Pipeline describes the kernel to package vk.
func (v Conversion) Pipeline(*problem.Config) (*vk.PipelineDesc, error) {
	module, err := shaders.Get(v.module)
	if err != nil {
		return nil, err
	}
	c := map[uint32]uint32{shaders.ConstLocalSize: convertLocal, shaders.ConstDtype: uint32(v.dtype), shaders.ConstHeadDim: v.dim,
		shaders.ConstHeadDimV: v.dimV, shaders.ConstDvSlice: v.dimV, shaders.ConstAlignK: v.align[0], shaders.ConstAlignV: v.align[1]}
	v.options.constants(c)
	desc, err := dispatch.DescribeKernel(module, convertLocal, c)
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d/%d", v.module, v.dtype, v.dim, v.dimV)
	return desc, nil
}

// ConvertedConfig is the Config of the call on converted K and V.
func ConvertedConfig(cfg problem.Config) problem.Config {
	cfg.KeyType, cfg.ValueType, cfg.KVBlock = problem.KVSame, problem.KVSame, 0
	return cfg
}

// Converted is the request of the call on converted K and V: packed, in memory of the Vulkan device alone.
func (r *Request) Converted(cfg *problem.Config) Request {
	c := *r
	c.Experiment.ConvertKV, c.VInK, c.FarKV = 0, false, false
	o := &c.Options
	o.KV, o.valueType, o.kvBlock, o.pageSize = problem.KVSame, problem.KVSame, 0, 0
	c.Align[1], c.Align[2] = 8, 8
	if MayCUDA(cfg) && c.CUDARefusal == 0 {
		c.CUDARefusal = cudaConverted
	}
	return c
}

// ConvertedKV is where converted K and V are: rows of both, packed, and the first byte of V, in a number of bytes.
type ConvertedKV struct{ Rows, VAt, Bytes uint64 }

// ConvertedKVOf is that of a number of keys of all sequences.
func ConvertedKVOf(cfg *problem.Config, s *problem.Shape, keys uint64) (c ConvertedKV) {
	size := uint64(cfg.DType.Size())
	c.Rows = hostmem.Product(uint64(s.KVHeads()), keys)
	c.VAt = hostmem.Sum(hostmem.Product(c.Rows, uint64(cfg.HeadDim), size), 255) &^ 255
	c.Bytes = hostmem.Sum(c.VAt, hostmem.Product(c.Rows, uint64(cfg.ValueDim()), size))
	return c
}

// ConvertGrid is the grid of the kernel.
func ConvertGrid(s *problem.Shape) [3]uint32 {
	return [3]uint32{arith.CeilDiv32(uint32(s.Sk), ConvertKeys), uint32(s.KVHeads()), 2 * uint32(s.B)}
}

// notConverted says why K and V of a call are not converted in front of it; "" if they can be.
func (r *Request) notConverted(caps *vk.Caps, cfg *problem.Config) string {
	l, s := &caps.Limits, &r.Shape
	most, largest := uint64(convertMost), uint64(0)
	for _, heap := range caps.MemoryHeaps {
		if heap.DeviceLocal {
			largest = max(largest, heap.Bytes)
		}
	}
	most = min(most, largest/8)
	if r.Access == problem.AccessDescriptors {
		most = min(most, l.MaxWindow())
	}
	perKey := hostmem.Product(s.B, s.KVHeads(), cfg.HeadDim+cfg.ValueDim(), cfg.DType.Size())
	switch {
	case cfg.DType == problem.F32:
		return "Q is float32"
	case cfg.KeyType.Latent():
		return cfg.KeyType.String() + " is not"
	case cfg.DType == problem.F16 && cfg.KeyType.Scaled():
		return "numbers times a scale may exceed float16"
	case cfg.FixedSplit != 0:
		return "the kernels of a sequence must not depend on its batch"
	case cfg.HeadDim%8 != 0 || cfg.ValueDim()%8 != 0 || max(cfg.HeadDim, cfg.ValueDim()) > convertDim:
		return fmt.Sprintf("head dims are multiples of 8 up to %d", convertDim)
	case r.Options.sparseTokens != 0 || r.Options.mapRows != 0:
		return "rows attend to some of the keys"
	case r.BlockMap:
		return "the call brings a map of tiles"
	case r.skAtLeast(int(max(most, 256)-256)/int(max(perKey, 1)) + 1):
		return fmt.Sprintf("it would take more than %s of scratch memory", hostmem.Bytes(most))
	case r.skAtLeast(int(l.MaxWorkGroupCount[0])*ConvertKeys+1) || uint64(s.KVHeads()) > uint64(l.MaxWorkGroupCount[1]) || uint64(s.B) > uint64(l.MaxWorkGroupCount[2]/2):
		return "the device dispatches fewer workgroups"
	}
	return generalFits(l, cfg, r.Access)
}

// converts decides whether K and V are converted in front of the call, by the time that it takes: all elements are read, written
// and read again, where the kernel converts those of each row block. why says it, or why it cannot be though it would take less
// time; "" if it would not.
func (r *Request) converts(caps *vk.Caps, cfg *problem.Config) (yes bool, why string) {
	asked := r.Experiment.ConvertKV
	if cfg.KeyType == problem.KVSame || r.AnyArgs || asked < 0 {
		return false, ""
	}
	of := r.seeOctant()
	front, inKernel := of.convertTimes(cfg)
	if asked == 0 && front >= inKernel {
		return false, ""
	}
	if why := r.notConverted(caps, cfg); why != "" {
		return false, "K and V are converted for each row block, not once in front of the kernel: " + why
	}
	return true, fmt.Sprintf("K and V are converted to %v in front of the kernel: %.3g us by estimate, in it %.3g", cfg.DType, front, inKernel)
}

// convertTimes estimates how long it takes to convert K and V of a call in front of the kernel and in it, in us.
func (r *Request) convertTimes(cfg *problem.Config) (front, inKernel float64) {
	s := &r.Shape
	perKey := float64(cfg.HeadDim + cfg.ValueDim())
	elements := perKey * float64(s.B) * float64(s.KVHeads()) * float64(s.Sk)
	stored := float64(cfg.KeyType.RowBytes(cfg.DType, cfg.HeadDim)+cfg.ValueType.RowBytes(cfg.DType, cfg.ValueDim())) / perKey
	keys := float64(s.Cells(cfg.Causal)) / float64(max(s.Sq, 1)) // of a row, on average
	left, right := cfg.Window.Left(), cfg.Window.Right()
	if cfg.Causal != problem.CausalNone {
		right = 0
	}
	if left >= 0 && right >= 0 {
		keys = min(keys, float64(left)+float64(right)+convertRows)
	}
	if cfg.AttentionChunk != 0 {
		keys = min(keys, float64(cfg.AttentionChunk)+convertRows)
	}
	blocks := float64(r.queryRows()) * float64(s.Hq) / convertRows
	return convertLaunch + elements*(stored+2*float64(cfg.DType.Size()))/memoryPace, blocks * keys * perKey / convertElements
}

// makeQuantized is Make for quantized K and V.
func makeQuantized(dev *vk.Device, cfg problem.Config, r Request, pick TilePicker) (chosen, error) {
	keys, asked := KeyRange{1, math.MaxInt}, r.Experiment.ConvertKV
	r.seen = &keys
	yes, why := r.converts(dev.Caps(), &cfg)
	r.Experiment.ConvertKV = 0
	if yes {
		if plan, err := makeConverted(dev, &cfg, &r, pick, keys, why); err == nil {
			return plan, nil
		}
	}
	plan, err := makeStored(dev, cfg, r, pick)
	switch {
	case err == nil && !yes && why != "":
		plan.Notes = append(plan.Notes, why)
	case err != nil && !yes && asked == 0 && !r.AnyArgs && r.notConverted(dev.Caps(), &cfg) == "": // tier cubin has no other prefill
		if c, also := makeConverted(dev, &cfg, &r, pick, keys, "K and V are converted in front of the kernel, which takes no others"); also == nil {
			return c, nil
		}
	}
	plan.Range = plan.Range.and(keys)
	return plan, err
}

// makeConverted is makeQuantized where K and V are converted in front of the call, for a reason.
func makeConverted(dev *vk.Device, cfg *problem.Config, r *Request, pick TilePicker, keys KeyRange, why string) (chosen, error) {
	c, err := makeStored(dev, ConvertedConfig(*cfg), r.Converted(cfg), pick)
	if err != nil {
		return c, err
	}
	c.Notes, c.Range, c.Splitting = append(c.Notes, why), c.Range.and(keys), SplittingOf(1)
	c.WorkspaceBytes = hostmem.Sum(c.WorkspaceBytes, ConvertedKVOf(cfg, &r.Shape, hostmem.Product(r.Shape.B, r.Shape.Sk)).Bytes)
	o := Options{KV: r.Options.KV, valueType: r.Options.valueType, kvBlock: r.Options.kvBlock, pageSize: r.Options.pageSize,
		Lengths: r.Options.Lengths & (lengthCuK | lengthUsedK), packRows: uint32(max(r.Shape.Group(), 1))}
	c.Conversion = Conversion{module: dispatch.ModuleName("convert", r.Access), options: o, align: [2]uint32{r.Align[1], r.Align[2]},
		dtype: cfg.DType, dim: uint32(cfg.HeadDim), dimV: uint32(cfg.ValueDim())}
	return c, nil
}
