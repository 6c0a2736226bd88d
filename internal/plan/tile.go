package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/shaders"
)

// tile is how a forward kernel divides its work: one comparable struct for each kernel
// family (scalarTile, coopmatTile, f32Tile, decodeTile). The tags of a field say how it is stored,
// compiled and tuned, so a new field is one new line:
//
//	json   its name in the tuning cache
//	const  the GLSL name of its specialization constant
//	try    the values that tuning tries; without the tag the heuristic's value stays
type tile interface {
	LocalSize() uint32                      // invocations per workgroup
	SubgroupSize() uint32                   // invocations per subgroup; 0: the kernel needs no subgroups
	Rows() uint32                           // query rows per workgroup
	keys() uint32                           // keys per KV tile
	columns() uint32                        // columns of O that a workgroup computes
	Splits() int                            // splits that the subgroups of a workgroup make of its keys
	computes(headDim, headDimV uint32) bool // reports whether the kernel's own conditions hold
	String() string                         // the text in plans and benchmark tables
	describe() string                       // String with every number that tuning varies
}

// fragment is a cooperative-matrix shape and the size of the subgroup that holds it.
type fragment struct {
	M        uint32 `json:"m" const:"FRAG_M"`
	N        uint32 `json:"n" const:"FRAG_N"`
	K        uint32 `json:"k" const:"FRAG_K"`
	SumN     uint32 `json:"sum_n" const:"SUM_N"` // the fewest columns of a fragment with M rows and depth K
	Subgroup uint32 `json:"subgroup" const:"SUBGROUP_SIZE"`
}

// tileFields returns the fields of a tile's type, with the fields of its fragment.
func tileFields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Anonymous })
}

// tileConstants adds the specialization constants of a tile's fields to c.
func tileConstants(t tile, c map[uint32]uint32) {
	c[shaders.ConstLocalSize] = t.LocalSize()
	v := reflect.ValueOf(t)
	for _, f := range tileFields(v.Type()) {
		name := f.Tag.Get("const")
		if name == "" {
			continue
		}
		id, ok := shaders.ConstantID(name)
		if !ok {
			panic("attention: no specialization constant " + name) // a test reads every tag
		}
		if x := v.FieldByIndex(f.Index); x.Kind() == reflect.Bool {
			c[id] = dispatch.BoolConstant(x.Bool())
		} else {
			c[id] = uint32(x.Uint())
		}
	}
}

// tileKey is a tile as compact JSON with every field. The tuning cache stores it. A key
// only selects a tile from the table of this build: see tiling.
type tileKey string

// KeyOf returns the key of a tile.
func KeyOf(t tile) tileKey {
	b, err := json.Marshal(t)
	if err != nil {
		return "" // numbers and booleans always marshal
	}
	return tileKey(b)
}

// MarshalJSON writes the object itself, not a string of it.
func (k tileKey) MarshalJSON() ([]byte, error) {
	switch {
	case k == "":
		return []byte("null"), nil
	case !json.Valid([]byte(k)): // not the key of any tile
		return json.Marshal(string(k))
	}
	return []byte(k), nil
}

// UnmarshalJSON takes any JSON.
func (k *tileKey) UnmarshalJSON(data []byte) error {
	var b bytes.Buffer
	err := json.Compact(&b, data)
	*k = tileKey(b.String())
	return err
}

// candidates lists the tiles of t's family that can compute v: t first, then the cross
// product of the values in the tags of its fields, but for those in keep. It ignores the
// device's limits and the shape; prune checks them.
func candidates[T interface {
	tile
	comparable
}](v *Variant, t T, keep ...string) []tile {
	list := []T{t}
	for _, f := range tileFields(reflect.TypeFor[T]()) {
		values := valuesOf(v, f.Tag.Get("try"))
		if values == nil || slices.Contains(keep, f.Tag.Get("json")) {
			continue
		}
		next := make([]T, 0, len(list)*len(values))
		for _, x := range list {
			for _, n := range values {
				reflect.ValueOf(&x).Elem().FieldByIndex(f.Index).SetUint(uint64(n))
				next = append(next, x)
			}
		}
		list = next
	}
	all := []tile{t}
	for _, x := range list {
		if x != t && x.computes(v.headDim, v.headDimV) {
			all = append(all, x)
		}
	}
	return all
}

// valuesOf returns the values of a field's tag try, or nil if it has none.
func valuesOf(v *Variant, try string) (list []uint32) {
	if try == "slices" {
		return slicesOfO(v)
	}
	for _, word := range strings.Fields(try) {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			panic(fmt.Sprintf("attention: tag try:%q: %v", try, err)) // a test reads every tag
		}
		list = append(list, uint32(n))
	}
	return list
}

// slicesOfO returns the widths of a slice of O to try: the tile's, all columns, and halves
// and quarters of them in whole fragments of at least 64 columns. Each slice computes all
// scores again.
func slicesOfO(v *Variant) []uint32 {
	list := []uint32{v.Tile.columns()}
	for n := uint32(1); n <= 4; n *= 2 {
		columns := v.headDimV
		if t, ok := v.Tile.(coopmatTile); ok && n > 1 {
			columns = arith.CeilDiv32(arith.CeilDiv32(v.headDimV, n), t.N) * t.N
		}
		if !slices.Contains(list, columns) && (n == 1 || columns >= 64) {
			list = append(list, columns)
		}
	}
	return list
}

// TilePicker may replace the heuristic's tile, v.tile. With a source of "" the heuristic's
// tile stays. The plan gets the notes in both cases. The returned tile is within the limits
// of the device.
type TilePicker func(v Variant, cfg problem.Config, r Request) (t tile, source string, notes []string)

// NamedTile returns a TilePicker that changes fields of the tile of the table, as an
// experiment names them: "kv_tile=32,group=4". See problem.Experiment. A tile that cannot run
// refuses the tier.
func NamedTile(text string) (TilePicker, error) {
	type change struct {
		field string
		value uint64
	}
	var list []change
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		field, value, ok := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q: want field=number up to 65535, such as kv_tile=32", word)
		}
		all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(fieldsOf(scalarTile{}), fieldsOf(coopmatTile{}), fieldsOf(f32Tile{})))))
		if !slices.Contains(all, field) {
			return nil, fmt.Errorf("%q: no tile has a field %q, want one of %s", word, field, strings.Join(all, ", "))
		}
		list = append(list, change{field, n})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no field is named")
	}
	return func(v Variant, _ problem.Config, _ Request) (tile, string, []string) {
		t := v.Tile
		for _, c := range list {
			changed, ok := withField(t, c.field, c.value)
			if !ok {
				return nil, "", []string{fmt.Sprintf("its tile has no field %s that a value may be given, it has %s", c.field, strings.Join(fieldsOf(t), ", "))}
			}
			t = changed
		}
		if t.columns() == 0 || hasForeignZero(t) || !t.computes(v.headDim, v.headDimV) {
			return nil, "", []string{fmt.Sprintf("the kernel cannot compute head dims %d and %d with tile %v", v.headDim, v.headDimV, t)}
		}
		return t, problem.TileNamed, nil
	}, nil
}

// hasForeignZero reports whether a field of t is 0 that tuning gives other values only: it
// may be a divisor or the step of a loop.
func hasForeignZero(t tile) bool {
	v := reflect.ValueOf(t)
	return slices.ContainsFunc(tileFields(v.Type()), func(f reflect.StructField) bool {
		values := strings.Fields(f.Tag.Get("try"))
		return len(values) > 0 && values[0] != "slices" && !slices.Contains(values, "0") && v.FieldByIndex(f.Index).IsZero()
	})
}

// PickOnly returns a TilePicker that always picks t. Tune times each candidate with it.
func PickOnly(t tile) TilePicker {
	return func(Variant, problem.Config, Request) (tile, string, []string) { return t, problem.TileTuned, nil }
}

// CheckTile reports whether Experiment.Tile is well formed. The error matches problem.ErrInvalid.
// Whether the tile can run depends on the device and the call.
func CheckTile(text string) error {
	if text == "" {
		return nil
	}
	if _, err := NamedTile(text); err != nil {
		return errs.Invalid("%v", err)
	}
	return nil
}

// CheckBackwardTiles reports whether Experiment.BackwardTiles is well formed. The error
// matches problem.ErrInvalid. Whether the tiles can run depends on the device and the call.
func CheckBackwardTiles(text string) error {
	if text == "" {
		return nil
	}
	if _, err := NamedTiles(text); err != nil {
		return errs.Invalid("%v", err)
	}
	return nil
}
