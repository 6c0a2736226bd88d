package plan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// BackwardPicker may replace the tile of v, which is the first of its table within the
// device's limits. It is asked for each kernel that has a tile.
type BackwardPicker func(v BackwardVariant, cfg *problem.Config, r *BackwardRequest) BackwardPick

// BackwardPick is the answer of a BackwardPicker.
type BackwardPick struct {
	Tile   tile
	Source string // "": the tile of the table stays
	Notes  []string
	Only   bool   // no other tile is taken if this one cannot run
	Refuse string // why the tier is refused; "": it is not
}

// setTile gives v another tile of its family.
func (v *BackwardVariant) setTile(t tile) {
	switch t := t.(type) {
	case backwardTile:
		v.Tile = t
	case backwardCoopmatTile:
		v.Coopmat = t
	case backwardF32Tile:
		v.F32 = t
	}
}

// dim is the larger head dim.
func (v *BackwardVariant) dim() uint32 { return max(v.headDim, v.headDimV) }

// fits checks the tile of v against the kernel's conditions and the device's limits before
// anything is compiled. It returns the shared memory of a workgroup in bytes, or the reason
// why the tile cannot run.
func (v *BackwardVariant) fits(limits *vk.Limits) (shared uint64, reason string) {
	if t := v.tile(); t != nil {
		if reason := v.tileFits(limits, t); reason != "" {
			return 0, reason
		}
	}
	shared, err := v.sharedBytes()
	switch {
	case err != nil:
		return 0, err.Error()
	case shared > uint64(limits.MaxSharedBytes):
		return 0, fmt.Sprintf("tile %v needs %d bytes of shared memory, the device has %d", v.tile(), shared, limits.MaxSharedBytes)
	}
	return shared, ""
}

// tileFits is the part of fits that does not read the SPIR-V.
func (v *BackwardVariant) tileFits(limits *vk.Limits, t tile) string {
	n, subgroup := t.LocalSize(), t.SubgroupSize()
	switch {
	case n == 0 || t.keys() == 0 || t.Rows() == 0, !t.computes(v.headDim, v.headDimV):
		return fmt.Sprintf("the kernel cannot compute head dims %d and %d with tile %v", v.headDim, v.headDimV, t)
	case n > limits.MaxInvocations || n > limits.MaxWorkGroupSize[0]:
		return fmt.Sprintf("tile %v needs %d invocations, the device has %d", t, n, min(limits.MaxInvocations, limits.MaxWorkGroupSize[0]))
	case subgroup != 0 && limits.MaxSubgroupsPerWorkgroup != 0 && n/subgroup > limits.MaxSubgroupsPerWorkgroup:
		return fmt.Sprintf("tile %v needs %d subgroups, the device has %d", t, n/subgroup, limits.MaxSubgroupsPerWorkgroup)
	}
	switch t := t.(type) {
	case backwardTile:
		if t.OwnsKeys != (v.Kernel == KernelDKDV) || !t.holds(v.dim()) {
			return fmt.Sprintf("tile %v has too many keys an invocation for head dim %d", t, v.dim())
		}
	case backwardF32Tile:
		return v.f32TileFits(t)
	case backwardCoopmatTile:
		most, keys := uint32(mostSteps), uint32(0) // keys: what must divide the number of keys of dS
		switch {
		case v.Kernel == KernelLSE: // it has a loop over steps
			most = t.keys()
		case v.Kernel == KernelDSK:
			most, keys = mostAddSteps, t.KVTile
		case v.Kernel == KernelDKDV && v.storeDS:
			keys = t.Rows()
			if rowUnit%t.RowTile != 0 {
				return fmt.Sprintf("tile %v: %d rows do not divide %d, the unit of the rows of dS", t, t.RowTile, rowUnit)
			}
		}
		if t.InSmem == 0 && !v.inRegisters {
			return fmt.Sprintf("tile %v: the device orders the elements of accumulators and operands differently", t)
		}
		if t.keys()/t.Step > most {
			return fmt.Sprintf("tile %v has over %d steps", t, most)
		}
		if keys != 0 && keyUnit%keys != 0 {
			return fmt.Sprintf("tile %v: %d keys do not divide %d, the unit of the keys of dS", t, keys, keyUnit)
		}
		if t.QSmemChunks >= arith.CeilDiv32(v.headDim, t.K) {
			return fmt.Sprintf("tile %v: head dim %d has %d chunks", t, v.headDim, arith.CeilDiv32(v.headDim, t.K))
		}
		if owned, other := t.RowTile, t.KVTile; owned != 0 == (v.Kernel != KernelDKDV) || other != 0 == (v.Kernel == KernelDKDV) {
			return fmt.Sprintf("tile %v is not one of the kernel of %s", t, backwardKernelNames[v.Kernel])
		}
	}
	return ""
}

// tileChange sets one field of a kernel's tile.
type tileChange struct {
	kernel backwardKernel
	field  string // its name in the tuning cache
	value  uint64
}

// NamedTiles returns a BackwardPicker that changes fields of the tiles of the table, as an
// experiment names them: "q.kv_tile=32,kv.row_tile=48". See problem.Experiment. A tile that
// cannot run refuses the tier.
func NamedTiles(text string) (BackwardPicker, error) {
	var list []tileChange
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, value, ok := strings.Cut(word, "=")
		kernel, field, dot := strings.Cut(name, ".")
		k := slices.Index(backwardKernelNames[:], kernel)
		n, err := strconv.ParseUint(value, 10, 16) // so that no product of fields overflows
		switch {
		case !ok || !dot || err != nil:
			return nil, fmt.Errorf("%q: want kernel.field=number up to 65535, such as kv.row_tile=48", word)
		case k < 0 || !slices.Contains(tiledKernels, backwardKernel(k)):
			var names []string
			for _, k := range tiledKernels {
				names = append(names, backwardKernelNames[k])
			}
			return nil, fmt.Errorf("%q: kernel %q has no tile, want one of %s", word, kernel, strings.Join(names, ", "))
		}
		all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(fieldsOf(backwardTile{}), fieldsOf(backwardCoopmatTile{}), fieldsOf(backwardF32Tile{})))))
		if !slices.Contains(all, field) {
			return nil, fmt.Errorf("%q: no tile has a field %q, want one of %s", word, field, strings.Join(all, ", "))
		}
		list = append(list, tileChange{backwardKernel(k), field, n})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no tile is named")
	}
	return func(v BackwardVariant, _ *problem.Config, _ *BackwardRequest) (pick BackwardPick) {
		t, mine := v.tile(), false
		for _, c := range list {
			if c.kernel != v.Kernel {
				continue
			}
			changed, ok := withField(t, c.field, c.value)
			if !ok {
				pick.Refuse = fmt.Sprintf("its tile has no field %s that a value may be given, it has %s", c.field, strings.Join(fieldsOf(t), ", "))
				return pick
			}
			t, mine = changed, true
		}
		if mine {
			pick = BackwardPick{Tile: t, Source: problem.TileNamed, Only: true}
		}
		return pick
	}, nil
}

// tiledKernels are the kernels with tiles, in the order of the enumeration.
var tiledKernels = []backwardKernel{KernelLSE, KernelDQ, KernelScores, KernelDV, KernelDK, KernelDKDV, KernelDSK, KernelDBias}

// fieldsOf lists the fields of a tile that an experiment may set: the numbers that are not
// the fragment's, which the device chooses.
func fieldsOf(t tile) (names []string) {
	fragments := fragmentFields()
	for _, f := range tileFields(reflect.TypeOf(t)) {
		if f.Type.Kind() == reflect.Uint32 && !slices.Contains(fragments, f.Tag.Get("json")) {
			names = append(names, f.Tag.Get("json"))
		}
	}
	return names
}

func fragmentFields() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[fragment]()) {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}

// withField returns t with a field of the given JSON name set; false if fieldsOf has no such
// field.
func withField(t tile, name string, value uint64) (tile, bool) {
	if !slices.Contains(fieldsOf(t), name) {
		return t, false
	}
	to := reflect.New(reflect.TypeOf(t))
	to.Elem().Set(reflect.ValueOf(t))
	if err := json.Unmarshal(fmt.Appendf(nil, "{%q:%d}", name, value), to.Interface()); err != nil {
		return t, false
	}
	return to.Elem().Interface().(tile), true
}
