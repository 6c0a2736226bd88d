package plan

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/shaders"
)

// The tags of a tile's fields name constants of the shaders and valid values, and every
// field survives the tuning cache.
func TestTileFieldsSayWhatTheyAre(t *testing.T) {
	for _, x := range []tile{scalarTile{}, coopmatTile{}, f32Tile{}, decodeTile{}} {
		names, constants := map[string]bool{}, map[string]bool{}
		v := Variant{Tile: x, headDim: 64, headDimV: 64}
		for _, f := range tileFields(reflect.TypeOf(x)) {
			name := f.Tag.Get("json")
			require.NotEmpty(t, name, "%T.%s", x, f.Name)
			require.False(t, names[name], "%T: %s twice", x, name)
			names[name] = true
			if c := f.Tag.Get("const"); c != "" {
				_, ok := shaders.ConstantID(c)
				require.True(t, ok, "%T.%s: no constant %s", x, f.Name, c)
				require.False(t, constants[c], "%T: %s twice", x, c)
				constants[c] = true
			}
			if try, ok := f.Tag.Lookup("try"); ok && try != "slices" {
				require.NotEmpty(t, valuesOf(&v, try), "%T.%s", x, f.Name)
				require.Equal(t, reflect.Uint32, f.Type.Kind(), "%T.%s", x, f.Name)
			}
			changed := reflect.New(reflect.TypeOf(x)).Elem()
			if y := changed.FieldByIndex(f.Index); y.Kind() == reflect.Bool {
				y.SetBool(true)
			} else {
				y.SetUint(1)
			}
			key := KeyOf(changed.Interface().(tile))
			require.NotEqual(t, KeyOf(x), key, "%T.%s is not in the key", x, f.Name)
			back, ok := tileOf(&v, key)
			require.True(t, ok, "%s", key)
			require.Equal(t, changed.Interface(), back)
		}
	}
}

// A variant sets the constants of its tile's own kernel family: a decode tile sets none
// that only the forward kernel reads.
func TestConstantsAreOfTheKernelFamily(t *testing.T) {
	id := func(name string) uint32 {
		n, ok := shaders.ConstantID(name)
		require.True(t, ok, name)
		return n
	}
	for _, c := range []struct {
		tile   tile
		with   []uint32
		absent []uint32
	}{
		{scalarTable[0], []uint32{shaders.ConstDtype, id("THREADS_X")}, []uint32{id("FRAG_M"), shaders.ConstSubgroupBarrier}},
		{coopmatTile{fragment: fragment{16, 16, 16, 16, 32}, Subgroups: 4, MFrags: 1, KVTile: 32, KVStep: 16, DvSlice: 64},
			[]uint32{id("FRAG_M"), shaders.ConstCheckKvEnd}, []uint32{id("THREADS_X"), shaders.ConstRegisterOperands}},
		{decodeTile{fragment: fragment{16, 16, 16, 8, 32}, Subgroups: 4, KVTile: 16, DvSlice: 64, DimSplit: 1},
			[]uint32{id("FRAG_M"), shaders.ConstRegisterOperands}, []uint32{id("THREADS_X"), shaders.ConstCheckKvEnd}},
	} {
		v := Variant{Tile: c.tile, headDim: 64, headDimV: 64}
		constants := v.constants()
		require.Equal(t, c.tile.LocalSize(), constants[shaders.ConstLocalSize])
		for _, x := range c.with {
			require.Contains(t, constants, x, "%T", c.tile)
		}
		for _, x := range c.absent {
			require.NotContains(t, constants, x, "%T", c.tile)
		}
	}
}
