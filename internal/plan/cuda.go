package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Tier cuda in the plan: the registered backend, what it refuses and why, and its choice of
// kernels, forward and backward.

var cuda atomic.Pointer[problem.CUDA]

// RegisterCUDA makes tier cuda available; package cudapath calls it. A later
// registration replaces an earlier one, and nil makes the tier unavailable.
func RegisterCUDA(c problem.CUDA) { cuda.Store(&c) }

// RegisteredCUDA returns the registered backend, or nil.
func RegisteredCUDA() problem.CUDA {
	if p := cuda.Load(); p != nil {
		return *p
	}
	return nil
}

// cudaRefusal is what keeps tier cuda from a call, other than the problem: 0 for nothing, 1
// to 5 for the tensor that CUDA cannot reach, CUDARecords, one of an option from 7 on, or cudaConverted.
type cudaRefusal uint8

const (
	CUDAOrdinary cudaRefusal = 1 // Q, and what follows, in ordinary memory
	CUDARecords  cudaRefusal = 6 // into a caller's command buffer

	cudaConverted cudaRefusal = 22 // the last: quantized K and V are
)

var cudaRefusals = [...]string{"",
	notShared + "Q", notShared + "K", notShared + "V", notShared + "O", notShared + "LSE",
	"it cannot record into a command buffer, since CUDA has its own stream: use Forward",
	notShared + "Varlen.CuQ", notShared + "Varlen.CuK", notShared + "Varlen.UsedQ", notShared + "Varlen.UsedK",
	notShared + "Pages.Table", notShared + "ALiBi", notShared + "Sinks", notShared + "Bias", notShared + "Mask", notShared + "DropoutState", notShared + "MaxLogits",
	notShared + "SparseTokens.Tokens", notShared + "SparseTokens.Offsets", notShared + "KScale", notShared + "VScale",
	"K and V are converted into memory that CUDA does not reach",
}

// optionBuffers are the buffers of the options that forward kernels of tier cuda take, in the order of cudaRefusals.
func optionBuffers(a *problem.Args) (b [15]*vk.Buffer) {
	if n := a.Varlen; n != nil {
		b[0], b[1], b[2], b[3] = n.CuQ.Buffer, n.CuK.Buffer, n.UsedQ.Buffer, n.UsedK.Buffer
	}
	if p := a.Pages; p != nil {
		b[4] = p.Table.Buffer
	}
	b[5], b[6] = a.ALiBi.Buffer, a.Sinks.Buffer
	if a.Bias != nil {
		b[7] = a.Bias.Buffer
	}
	if a.Mask != nil {
		b[8] = a.Mask.Buffer
	}
	b[9], b[10] = a.DropoutState.Buffer, a.MaxLogits.Buffer
	if a.SparseTokens != nil {
		b[11], b[12] = a.SparseTokens.Tokens.Buffer, a.SparseTokens.Offsets.Buffer
	}
	b[13], b[14] = a.KScale.Buffer, a.VScale.Buffer
	return b
}

const notShared = "CUDA does not reach the buffer (made without Exportable?) of "

// CUDARefusalOf returns the first tensor that CUDA cannot reach.
func CUDARefusalOf(l *tensors.Layouts, a *problem.Args) cudaRefusal {
	c := RegisteredCUDA()
	if c == nil {
		return 0
	}
	for i := range l.All() {
		if c.Reach(l.List[i].Tensor.Buffer) != nil {
			return cudaRefusal(1 + i)
		}
	}
	for i, b := range optionBuffers(a) {
		if b != nil && c.Reach(b) != nil {
			return CUDARecords + cudaRefusal(1+i)
		}
	}
	return 0
}

// planCUDA fills in plan for tier cuda, or reports why it cannot.
func planCUDA(plan *chosen, dev *vk.Device, cfg *problem.Config, r *Request) error {
	c := RegisteredCUDA()
	switch {
	case c == nil:
		return NoCUDA("it is not part of this program: import vkattn/cudapath")
	case r.Experiment != (problem.Experiment{}):
		return NoCUDA("only cooperative-matrix kernels have variants and ablations")
	case r.CUDARefusal != 0:
		return NoCUDA(cudaRefusals[r.CUDARefusal])
	case cfg.Tier != problem.TierCUDA && !r.mayBeRaced():
		return notRaced
	}
	err := plan.chooseCUDA(onVulkan{c, dev}, cfg, r, cfg.Tier == problem.TierCUDA)
	if err == nil && r.Options.Any() && cfg.Tier != problem.TierCUDA && !strings.HasPrefix(plan.family, "fa3") {
		return notRaced
	}
	return err
}

const notRaced = NoCUDA("its kernels for options have not been raced against those of other tiers: it takes them if asked for")

// mayBeRaced reports whether tier cuda may have kernels of family fa3 for the options of a call: those of lengths and windows, which have
// the pace of the dense ones, and those of latent attention.
func (r *Request) mayBeRaced() bool {
	f := &r.Options
	sequences := f.notSequences() == "" && f.sparseTokens == 0 && f.KV == problem.KVSame && f.valueType == problem.KVSame
	return sequences || r.mayBeLatent() && !f.listOffsets()
}

// mayBeLatent reports whether tier cuda is raced with its kernels of latent attention: they take the options of a call, V is in K, and K is
// stored as Q or in rows of latent attention.
func (r *Request) mayBeLatent() bool {
	return r.VInK && (r.Options.KV == problem.KVSame || r.Options.KV.Latent()) && r.Options.notLatent() == ""
}

// onVulkan is the CUDAChooser of a Vulkan device.
type onVulkan struct {
	problem.CUDA
	dev *vk.Device
}

func (c onVulkan) Choose(p problem.CUDAProblem) (problem.CUDAChoice, error) {
	return c.CUDA.Choose(c.dev, p)
}

func (c onVulkan) ChooseBackward(p problem.CUDABackwardProblem) (problem.CUDABackwardChoice, error) {
	return c.CUDA.ChooseBackward(c.dev, p)
}

// chooseCUDA fills in plan with a kernel of a CUDA device, or reports why there is none. slow: a kernel for validation will
// do.
func (plan *chosen) chooseCUDA(c problem.CUDAChooser, cfg *problem.Config, r *Request, slow bool) error {
	noDecode := notInDecodeAsQ(cfg, r)
	options, tokens := r.Options.withoutLatentTokens(r.VInK)
	if tokens {
		noDecode = "its decode kernels take no sparse tokens"
	}
	latentRows := cfg.KeyType.Latent()
	if latentRows { // its kernels of latent attention take them
		options.KV, options.valueType, noDecode = problem.KVSame, problem.KVSame, notInDecode(cfg, r)
	}
	switch {
	case cfg.OType() != cfg.DType:
		return NoCUDA(noF32Outputs)
	case latentRows && !r.VInK:
		return NoCUDA(fmt.Sprintf("its kernels take %v with one KV head and V that is the tensor of K", cfg.KeyType))
	case quantized(cfg) && !latentRows:
		noDecode = notInDecode(cfg, r)
		if noDecode != "" {
			return NoCUDA(noDecode)
		}
	case options.notInCUDA() != "":
		return NoCUDA("its forward kernels take no " + options.notInCUDA())
	}
	switch {
	case cfg.FixedSplit != 0:
		return NoCUDA("its forward kernels take no fixed splits")
	case (r.skAtLeast(maxCUDALength+1) || r.Shape.Sq > maxCUDALength) && r.Options.Any():
		return NoCUDA(fmt.Sprintf("Sq %d and Sk %d: its kernels for options take at most 2^29", r.Shape.Sq, r.Shape.Sk))
	}
	if why := CUDASoftcapRefusal(cfg); why != "" {
		return NoCUDA(why)
	}
	if r.VInK { // kernels of latent attention count the KV tiles of all sequences
		r.skAtLeast(problem.LatentKeys * (problem.MaxLatentTiles / r.Shape.B))
	}
	choice, err := c.Choose(problem.CUDAProblem{Shape: r.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Causal: cfg.Causal != problem.CausalNone, Align: slices.Min(r.Align[:]), LSE: r.LSE, Kernel: cfg.Kernel, Options: r.Options.inCUDA(), Slots: r.Options.ofSlots(),
		VInK: r.VInK, NotLatent: r.Options.notLatent(), NotSequences: r.Options.notSequences(), PageSize: int(r.Options.pageSize), Tokens: tokens, Offsets: tokens && r.Options.listOffsets(), KV: cfg.KeyType, Rows: r.queryRows(), NoDecode: noDecode})
	switch {
	case err != nil:
		return err
	case choice.Validation && !slow:
		return NoCUDA(strings.Join(append(choice.Rejected, "only the slow kernel for validation remains"), "; "))
	}
	for _, why := range choice.Rejected {
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: problem.TierCUDA, Reason: why})
	}
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCUDA, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.SharedBytes, plan.Workgroups, plan.CUDA = choice.SharedBytes, choice.Workgroups, choice.Kernel
	plan.WorkspaceBytes = choice.WorkspaceBytes
	plan.Reason, plan.family, plan.rows = "asked for", choice.Family, choice.Rows
	if slices.Min(r.Align[:]) < 8 {
		plan.family += "_any" // loads single elements
	}
	if choice.Resident > 0 {
		plan.splitDecode(r, choice.Rows, choice.StateDim, choice.Resident)
	}
	return nil
}

// quantized reports whether K or V is.
func quantized(cfg *problem.Config) bool {
	return cfg.KeyType != problem.KVSame || cfg.ValueType != problem.KVSame
}

// notInDecodeAsQ says what the decode kernels of K and V stored as Q do not take of a call that the other forward kernels do.
func notInDecodeAsQ(cfg *problem.Config, r *Request) string {
	const takes = "its decode kernels take "
	switch {
	case cfg.DType == problem.F32:
		return takes + "no f32"
	case cfg.HeadDim != cfg.ValueDim():
		return takes + "one head dim"
	case r.Options.ofSlots():
		return takes + "no bias, mask and dropout"
	case r.Options.maxLogits:
		return takes + "no MaxLogits"
	case r.Options.pageSize%decodePage != 0:
		return fmt.Sprintf(takes+"pages of multiples of %d keys, not %d", decodePage, r.Options.pageSize)
	case slices.Min(r.Align[:]) < 8:
		return takes + "head dims, offsets and strides that are multiples of 8 elements"
	case r.FarKV:
		return takes + nearKV
	}
	return ""
}

// nearKV is the strides that the decode kernels of tier cuda take.
const nearKV = "strides of less than 2^32 bytes between rows and between pages of K and V"

// maxCUDALength is MaxLength of cudapath/kernels/fa2_general.h and MAX_LENGTH of fa3_options.h, and what decode kernels take.
const maxCUDALength = 1 << 29

// CUDASoftcapRefusal says why the kernels of tier cuda do not take the softcap of a Config; "" if they do.
func CUDASoftcapRefusal(cfg *problem.Config) string {
	if f := FactorsOf(*cfg).Natural; f.Softcap != 0 && f.Scale != 0 {
		if q := math.Abs(float64(f.Scale)) / float64(f.Softcap); q < leastNormal || q > math.MaxFloat32 {
			return fmt.Sprintf("its kernels take scale / softcap in float32: %v / %v", cfg.ScaleValue(), cfg.Softcap)
		}
	}
	return ""
}

// CUDABackwardRecords is the CUDARefusal of a call that records into a caller's command buffer.
const CUDABackwardRecords = "it cannot record into a command buffer, since CUDA has its own stream: use Backward"

// CUDABackwardRefusal returns what keeps tier cuda from the tensors of a backward call: the
// first that CUDA cannot reach; "" if it reaches all.
func CUDABackwardRefusal(l *tensors.BackwardTensors, a *problem.BackwardArgs) (refusal string) {
	c := RegisteredCUDA()
	if c == nil {
		return ""
	}
	look := func(field string, b *vk.Buffer) {
		if refusal == "" && b != nil && c.Reach(b) != nil {
			refusal = notShared + field
		}
	}
	_ = l.Each(func(_ int, t *tensors.Layout) error { look(t.Field, t.Tensor.Buffer); return nil })
	if v := a.Varlen; v != nil {
		look("Varlen.CuQ", v.CuQ.Buffer)
		look("Varlen.CuK", v.CuK.Buffer)
		look("Varlen.UsedQ", v.UsedQ.Buffer)
		look("Varlen.UsedK", v.UsedK.Buffer)
	}
	return refusal
}

// planBackwardCUDA fills in a backward plan for tier cuda, or reports why it cannot. Of options
// its kernels take lengths, a window and a softcap.
func planBackwardCUDA(plan *chosenBackward, dev *vk.Device, cfg *problem.Config, r *BackwardRequest) error {
	c := RegisteredCUDA()
	if c == nil {
		return NoCUDA("it is not part of this program: import vkattn/cudapath")
	}
	if r.CUDARefusal != "" {
		return NoCUDA(r.CUDARefusal)
	}
	return plan.chooseCUDA(onVulkan{c, dev}, cfg, r, cfg.Tier == problem.TierCUDA)
}

// chooseCUDA is that of chosen, for gradients.
func (plan *chosenBackward) chooseCUDA(c problem.CUDAChooser, cfg *problem.Config, r *BackwardRequest, slow bool) error {
	if r.packed(LengthCuQ) && r.TotalQ == 0 || r.packed(lengthCuK) && r.TotalK == 0 {
		return NoCUDA("its backward kernels take at least one packed row and one packed key")
	}
	if cfg.OType() != cfg.DType || cfg.GradientType() != cfg.DType {
		return NoCUDA(noF32Outputs)
	}
	if option := r.Options.notInCUDABackward(); option != "" {
		return NoCUDA("its backward kernels take no " + option)
	}
	if why := CUDASoftcapRefusal(cfg); why != "" {
		return NoCUDA(why)
	}
	align := uint32(tensors.LargestAlignment(0))
	for _, n := range r.Align {
		if n > 0 {
			align = min(align, n)
		}
	}
	choice, err := c.ChooseBackward(problem.CUDABackwardProblem{
		CUDAProblem: problem.CUDAProblem{Shape: r.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
			Causal: cfg.Causal != problem.CausalNone, Align: align, LSE: true, Kernel: cfg.Kernel},
		Want: [3]bool{r.Want.Q, r.Want.K, r.Want.V}, TotalQ: r.TotalQ, TotalK: r.TotalK,
		Lengths: r.Options.Lengths != 0, Window: cfg.Window.Given(), Softcap: cfg.Softcap != 0,
	})
	switch {
	case err != nil:
		return err
	case choice.Validation && !slow:
		return NoCUDA(strings.Join(append(choice.Rejected, "only the slow kernels for validation remain"), "; "))
	}
	for _, why := range choice.Rejected {
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: problem.TierCUDA, Reason: why})
	}
	plan.Tier, plan.BackwardPlan.Kernels, plan.ScratchBytes, plan.CUDA = problem.TierCUDA, choice.Kernels, choice.ScratchBytes, choice.Launcher
	plan.Reason = "the fastest, and the device has the kernels"
	if cfg.Tier == problem.TierCUDA {
		plan.Reason = "asked for"
	}
	return nil
}

// NoCUDA is the reason why tier cuda does not compute a problem.
type NoCUDA string

func (e NoCUDA) Error() string { return string(e) }
func (NoCUDA) Unwrap() error   { return problem.ErrUnsupported }

// MayCUDA reports whether a call may run on tier cuda.
func MayCUDA(c *problem.Config) bool {
	return c.Tier == problem.TierCUDA || c.Tier == problem.TierAuto && RegisteredCUDA() != nil
}
