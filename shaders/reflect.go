package shaders

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Reflection is what a SPIR-V module says of itself: the constants it can be
// specialized with and the resources it takes. It reads; it does not validate.
// It needs no debug names: everything is found by number.
type Reflection struct {
	decorations  map[uint32]map[uint32][]uint32    // id -> decoration -> operands
	members      map[[2]uint32]map[uint32][]uint32 // struct, member -> decoration -> operands
	types        map[uint32]instruction
	constants    map[uint32]instruction
	variables    []instruction
	capabilities []string
	localSize    []uint32 // execution mode LocalSize: literals
	localSizeIDs []uint32 // execution mode LocalSizeId: constants
}

type instruction struct {
	op       uint32
	operands []uint32 // everything after the opcode word
}

var errTruncated = errors.New("SPIR-V is truncated")

const (
	spirvMagic = 0x07230203

	opExecutionMode    = 16
	opCapability       = 17
	opTypeVoid         = 19
	opTypeForward      = 39
	opConstantTrue     = 41
	opConstantFalse    = 42
	opConstant         = 43
	opConstantComp     = 44
	opConstantNull     = 46
	opSpecTrue         = 48
	opSpecFalse        = 49
	opSpecConstant     = 50
	opSpecComposite    = 51
	opSpecConstantOp   = 52
	opFunction         = 54
	opVariable         = 59
	opDecorate         = 71
	opMemberDecorate   = 72
	opExecutionModeID  = 331
	opTypeVector       = 23
	opTypeBool         = 20
	opTypeInt          = 21
	opTypeFloat        = 22
	opTypeMatrix       = 24
	opTypeArray        = 28
	opTypeRuntimeArray = 29
	opTypeStruct       = 30
	opTypePointer      = 32

	modeLocalSize   = 17
	modeLocalSizeID = 38

	decorationSpecID      = 1
	decorationArrayStride = 6
	decorationBuiltIn     = 11
	decorationBinding     = 33
	decorationOffset      = 35
	builtInWorkgroupSize  = 25

	storageUniform       = 2
	storageWorkgroup     = 4
	storagePushConstant  = 9
	storageStorageBuffer = 12
)

// Reflect reads SPIR-V. Anything malformed is an error.
func Reflect(code []byte) (*Reflection, error) {
	if len(code)%4 != 0 || len(code) < 20 {
		return nil, errTruncated
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if words[0] != spirvMagic {
		return nil, fmt.Errorf("not little-endian SPIR-V: magic %#08x", words[0])
	}
	r := &Reflection{
		decorations: map[uint32]map[uint32][]uint32{},
		members:     map[[2]uint32]map[uint32][]uint32{},
		types:       map[uint32]instruction{},
		constants:   map[uint32]instruction{},
	}
	for at := 5; at < len(words); {
		count, op := int(words[at]>>16), words[at]&0xffff
		if count == 0 || at+count > len(words) {
			return nil, errTruncated
		}
		if op == opFunction {
			break // declarations are over
		}
		if err := r.declare(instruction{op, words[at+1 : at+count]}); err != nil {
			return nil, err
		}
		at += count
	}
	return r, nil
}

// minOperands is how many operands the instructions read here need.
var minOperands = map[uint32]int{
	opExecutionMode: 2, opExecutionModeID: 2, opCapability: 1, opDecorate: 2, opMemberDecorate: 3,
	opVariable: 3, opTypeInt: 3, opTypeFloat: 2, opTypeVector: 3, opTypeMatrix: 3, opTypeArray: 3,
	opTypeRuntimeArray: 2, opTypeStruct: 1, opTypePointer: 3, opConstant: 3, opSpecConstant: 3, opSpecConstantOp: 3,
}

func (r *Reflection) declare(i instruction) error {
	if len(i.operands) < minOperands[i.op] {
		return fmt.Errorf("SPIR-V instruction %d has %d operands", i.op, len(i.operands))
	}
	o := i.operands
	switch {
	case i.op == opCapability:
		r.capabilities = append(r.capabilities, capabilityName(o[0]))
	case i.op == opExecutionMode && o[1] == modeLocalSize && len(o) >= 5:
		r.localSize = o[2:5]
	case i.op == opExecutionModeID && o[1] == modeLocalSizeID && len(o) >= 5:
		r.localSizeIDs = o[2:5]
	case i.op == opDecorate:
		addDecoration(r.decorations, o[0], o[1], o[2:])
	case i.op == opMemberDecorate:
		addDecoration(r.members, [2]uint32{o[0], o[1]}, o[2], o[3:])
	case i.op == opVariable:
		r.variables = append(r.variables, i)
	case i.op >= opTypeVoid && i.op < opTypeForward && len(o) >= 1:
		r.types[o[0]] = i
	case i.op >= opConstantTrue && i.op <= opSpecConstantOp && len(o) >= 2:
		r.constants[o[1]] = i
	}
	return nil
}

func addDecoration[K comparable](all map[K]map[uint32][]uint32, key K, decoration uint32, operands []uint32) {
	if all[key] == nil {
		all[key] = map[uint32][]uint32{}
	}
	all[key][decoration] = operands
}

// decoration returns the first operand of a decoration of id.
func (r *Reflection) decoration(id, decoration uint32) (uint32, bool) {
	operands := r.decorations[id][decoration]
	if len(operands) == 0 {
		return 0, false
	}
	return operands[0], true
}

// SpecIDs lists the ids of the specialization constants, in order; the workgroup
// size has one too. Their names are in constants*.glsl: modules are stripped of names.
func (r *Reflection) SpecIDs() []uint32 {
	ids := map[uint32]bool{}
	for id := range r.constants {
		if specID, ok := r.decoration(id, decorationSpecID); ok {
			ids[specID] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Capabilities lists the SPIR-V capabilities that the module declares.
func (r *Reflection) Capabilities() []string { return slices.Clone(r.capabilities) }

// Bindings lists the storage and uniform buffer bindings, in order.
func (r *Reflection) Bindings() []uint32 {
	set := map[uint32]bool{}
	for _, v := range r.variables {
		if class := v.operands[2]; class == storageStorageBuffer || class == storageUniform {
			if binding, ok := r.decoration(v.operands[1], decorationBinding); ok {
				set[binding] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// capabilityName names the capabilities that these kernels may use.
func capabilityName(c uint32) string {
	if name, ok := capabilityNames[c]; ok {
		return name
	}
	return fmt.Sprintf("Capability(%d)", c)
}

var capabilityNames = map[uint32]string{
	0: "Matrix", 1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 22: "Int16", 39: "Int8",
	61: "GroupNonUniform", 62: "GroupNonUniformVote", 63: "GroupNonUniformArithmetic",
	64: "GroupNonUniformBallot", 65: "GroupNonUniformShuffle", 68: "GroupNonUniformClustered",
	4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess",
	4441: "VariablePointersStorageBuffer", 4442: "VariablePointers",
	5116: "BFloat16TypeKHR", 5118: "BFloat16CooperativeMatrixKHR",
	5345: "VulkanMemoryModel", 5346: "VulkanMemoryModelDeviceScope", 5347: "PhysicalStorageBufferAddresses",
	5430: "CooperativeMatrixReductionsNV", 5431: "CooperativeMatrixConversionsNV",
	5432: "CooperativeMatrixPerElementOperationsNV", 5433: "CooperativeMatrixTensorAddressingNV",
	5434: "CooperativeMatrixBlockLoadsNV", 5439: "TensorAddressingNV", 6022: "CooperativeMatrixKHR",
}
