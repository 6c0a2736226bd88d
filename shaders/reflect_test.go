package shaders

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// scalarTileBytes is the scalar kernel's shared memory as its source declares it.
func scalarTileBytes(local, threadsX, rows, cols, chunkD, chunkV, slice uint64) uint64 {
	staged := chunkD/4 + 1
	quads := (slice + 4*threadsX - 1) / (4 * threadsX)
	return 16*(rows*staged+max(cols*staged, chunkV*quads*threadsX)) + 4*rows*(cols+threadsX)
}

func TestSharedBytesFollowsTheTile(t *testing.T) {
	r := reflection(t, "scalar_ssbo")
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, of ...uint32) uint32 { return rapid.SampledFrom(of).Draw(t, name) }
		x, y := pick("x", 4, 8, 16, 32), pick("y", 1, 4, 8, 16)
		rows, cols := y*pick("rows", 1, 2, 4, 8), x*pick("cols", 1, 2, 4)
		chunkD, chunkV := pick("chunk d", 8, 16, 32, 64), pick("chunk v", 4, 8, 16)
		slice := rapid.Uint32Range(1, 512).Draw(t, "slice")
		got, err := r.SharedBytes(map[uint32]uint32{
			ConstLocalSize: x * y, ConstThreadsX: x, ConstQTile: rows, ConstKvTile: cols,
			ConstChunkD: chunkD, ConstChunkV: chunkV, ConstDvSlice: slice,
		})
		require.NoError(t, err)
		require.Equal(t, scalarTileBytes(uint64(x*y), uint64(x), uint64(rows), uint64(cols), uint64(chunkD), uint64(chunkV), uint64(slice)), got)
	})
}

func TestSharedBytesOfTheDefaults(t *testing.T) {
	for _, name := range Names() {
		bytes, err := reflection(t, name).SharedBytes(nil)
		require.NoError(t, err, name)
		if strings.HasPrefix(name, "merge") || strings.HasPrefix(name, "peak") || name == "backward_table_sum_ssbo" || name == "copy_bda" || name == "read_bda" ||
			strings.HasPrefix(name, "convert") {
			assert.Zero(t, bytes, name)
			continue
		}
		assert.Positive(t, bytes, name)
	}
}

func TestSharedBytesRefusesDivisionByZero(t *testing.T) {
	_, err := reflection(t, "scalar_ssbo").SharedBytes(map[uint32]uint32{ConstThreadsX: 0})
	assert.ErrorContains(t, err, "zero")
}

// assemble makes a module of these instructions.
func assemble(instructions ...instruction) []byte {
	words := []uint32{spirvMagic, 0x10300, 0, 100, 0}
	for _, i := range instructions {
		words = append(words, uint32(len(i.operands)+1)<<16|i.op)
		words = append(words, i.operands...)
	}
	var code []byte
	for _, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return code
}

func TestSpecializationOperations(t *testing.T) {
	const boolean, uint32Type, int32Type = 1, 2, 3
	minus7 := ^uint32(6)
	for _, c := range []struct {
		name    string
		typ, op uint32
		a, b    uint32
		want    uint64
	}{
		{"IAdd wraps", uint32Type, 128, ^uint32(0), 2, 1},
		{"ISub wraps", uint32Type, 130, 1, 2, 0xffffffff},
		{"IMul", uint32Type, 132, 6, 7, 42},
		{"UDiv", uint32Type, 134, 43, 7, 6},
		{"SDiv rounds to zero", int32Type, 135, minus7, 2, 0xfffffffd},
		{"UMod", uint32Type, 137, 43, 7, 1},
		{"SRem has the dividend's sign", int32Type, 138, minus7, 4, 0xfffffffd},
		{"SMod has the divisor's sign", int32Type, 139, minus7, 4, 1},
		{"ShiftRightLogical", uint32Type, 194, 0x80000000, 31, 1},
		{"ShiftRightArithmetic", int32Type, 195, minus7, 1, 0xfffffffc},
		{"ShiftLeftLogical", uint32Type, 196, 3, 31, 0x80000000},
		{"BitwiseOr", uint32Type, 197, 6, 9, 15},
		{"BitwiseXor", uint32Type, 198, 6, 3, 5},
		{"BitwiseAnd", uint32Type, 199, 6, 3, 2},
		{"IEqual", boolean, 170, 3, 3, 1},
		{"INotEqual", boolean, 171, 3, 3, 0},
		{"UGreaterThan", boolean, 172, minus7, 1, 1},
		{"SGreaterThan", boolean, 173, minus7, 1, 0},
		{"UGreaterThanEqual", boolean, 174, 1, 1, 1},
		{"SGreaterThanEqual", boolean, 175, minus7, 1, 0},
		{"ULessThan", boolean, 176, minus7, 1, 0},
		{"SLessThan", boolean, 177, minus7, 1, 1},
		{"ULessThanEqual", boolean, 178, 1, 1, 1},
		{"SLessThanEqual", boolean, 179, minus7, 1, 1},
		{"LogicalOr", boolean, 166, 0, 1, 1},
		{"LogicalAnd", boolean, 167, 0, 1, 0},
	} {
		operand := uint32(uint32Type)
		if c.typ == int32Type || (c.op >= 172 && c.op <= 179 && c.op%2 == 1) {
			operand = int32Type
		}
		r, err := Reflect(assemble(
			instruction{opTypeBool, []uint32{boolean}},
			instruction{opTypeInt, []uint32{uint32Type, 32, 0}},
			instruction{opTypeInt, []uint32{int32Type, 32, 1}},
			instruction{opConstant, []uint32{operand, 10, c.a}},
			instruction{opConstant, []uint32{operand, 11, c.b}},
			instruction{opSpecConstantOp, []uint32{c.typ, 12, c.op, 10, 11}},
		))
		require.NoError(t, err, c.name)
		got, err := r.evaluator(nil).scalar(12)
		require.NoError(t, err, c.name)
		assert.Equal(t, c.want, got, c.name)
	}
}

func TestSelectFollowsASpecializedCondition(t *testing.T) {
	r, err := Reflect(assemble(
		instruction{opDecorate, []uint32{10, decorationSpecID, 5}},
		instruction{opTypeBool, []uint32{1}},
		instruction{opTypeInt, []uint32{2, 32, 0}},
		instruction{opSpecTrue, []uint32{1, 10}},
		instruction{opConstant, []uint32{2, 11, 7}},
		instruction{opConstant, []uint32{2, 12, 8}},
		instruction{opSpecConstantOp, []uint32{2, 13, 169, 10, 11, 12}},
	))
	require.NoError(t, err)
	for constant, want := range map[uint32]uint64{0: 8, 1: 7} {
		got, err := r.evaluator(map[uint32]uint32{5: constant}).scalar(13)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

func TestReflectRefusesWhatIsNotSPIRV(t *testing.T) {
	good := assemble(instruction{opCapability, []uint32{1}})
	for name, code := range map[string][]byte{
		"empty":            nil,
		"a header cut off": good[:16],
		"no whole word":    good[:len(good)-1],
		"cut off":          good[:len(good)-4],
		"other magic":      append([]byte{7, 2, 35, 3}, good[4:]...),
		"length zero":      append(assemble(), 0, 0, 0, 0),
		"too few operands": assemble(instruction{opTypeInt, []uint32{1}}),
	} {
		if _, err := Reflect(code); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	_, err := Reflect(append([]byte{3, 2, 35, 7}, good[4:]...))
	assert.NoError(t, err)
}

func TestCyclesAreErrors(t *testing.T) {
	r, err := Reflect(assemble(
		instruction{opTypeInt, []uint32{2, 32, 0}},
		instruction{opSpecConstantOp, []uint32{2, 10, 128, 10, 10}}, // 10 = 10 + 10
		instruction{opTypeStruct, []uint32{3, 3, 3}},                // contains itself twice
		instruction{opTypePointer, []uint32{4, storageWorkgroup, 3}},
		instruction{opVariable, []uint32{4, 20, storageWorkgroup}},
	))
	require.NoError(t, err)
	_, err = r.evaluator(nil).scalar(10)
	assert.ErrorContains(t, err, "itself")
	_, err = r.SharedBytes(nil)
	assert.ErrorContains(t, err, "itself")
}

// No input makes the reader panic or run away.
func FuzzReflect(f *testing.F) {
	for _, name := range []string{"scalar_ssbo", "scalar_bda"} {
		m, err := Get(name)
		require.NoError(f, err)
		f.Add(m.Code[:min(len(m.Code), 12000)&^3], uint32(ConstThreadsX), uint32(8))
	}
	f.Add(assemble(instruction{opTypeInt, []uint32{2, 32, 0}}, instruction{opSpecConstant, []uint32{2, 3, 4}}), uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, code []byte, id, value uint32) {
		r, err := Reflect(code)
		if err != nil {
			return
		}
		constants := map[uint32]uint32{id: value}
		_, _ = r.SharedBytes(constants)
		_, _ = r.LocalSize(constants)
		r.SpecIDs()
		r.Capabilities()
		r.Bindings()
		r.PushConstantBytes()
		_, _ = r.PushConstants()
	})
}
