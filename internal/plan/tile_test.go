package plan

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
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
			back, ok := tileOf(v.Tile, key)
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

// No value of a field of a named tile divides by zero.
func TestNamedTileTakesAnyNumber(t *testing.T) {
	f := fragment{M: 16, N: 16, K: 16, SumN: 8, Subgroup: 32}
	for _, x := range []tile{
		scalarTile{Invocations: 256, ThreadsX: 8, BlockRows: 64, KVTile: 32, ChunkD: 16, ChunkV: 8, DvSlice: 64},
		coopmatTile{fragment: f, Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 16, DvSlice: 64},
		f32Tile{fragment: f, Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Group: 4, DvSlice: 64, DimSplit: 1},
	} {
		v := Variant{Tile: x, headDim: 64, headDimV: 64}
		_, source, _ := mustName(t, "kv_tile=32")(v, problem.Config{}, Request{})
		require.Equal(t, problem.TileNamed, source, "%v", x)
		for _, field := range fieldsOf(x) {
			for _, n := range []int{0, 1, 3, 8, 65535} {
				require.NotPanics(t, func() {
					mustName(t, fmt.Sprintf("%s=%d", field, n))(v, problem.Config{}, Request{})
				}, "%T %s=%d", x, field, n)
			}
		}
	}
}

func mustName(t *testing.T, text string) TilePicker {
	pick, err := NamedTile(text)
	require.NoError(t, err, text)
	return pick
}

// NamedTile changes the fields that its text names and no others, and refuses text and tiles
// that cannot be.
func TestNamedTile(t *testing.T) {
	v := Variant{headDim: 128, headDimV: 128}
	before := f32Tile{fragment: fragment{M: 16, N: 16, K: 16, SumN: 8, Subgroup: 32}, Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Group: 4, DvSlice: 128, DimSplit: 1}
	v.Tile = before
	for text, change := range map[string]func(t *f32Tile){
		"group=2":                   func(t *f32Tile) { t.Group = 2 },
		"pair_tile=32 pair_group=4": func(t *f32Tile) { t.PairTile, t.PairGroup = 32, 4 },
		"group=1,fences=1,group=2":  func(t *f32Tile) { t.Fences, t.Group = 1, 2 },
	} {
		pick, err := NamedTile(text)
		require.NoError(t, err, text)
		got, source, _ := pick(v, problem.Config{}, Request{})
		after := before
		change(&after)
		require.Equal(t, problem.TileNamed, source, text)
		require.Equal(t, after, got, text)
	}
	for text, why := range map[string]string{
		"pair_tile=16":   "cannot compute", // without a group
		"kv_tile=0":      "cannot compute",
		"group=0":        "cannot compute",
		"invocations=64": "no field invocations", // a field of the scalar kernel
	} {
		pick, err := NamedTile(text)
		require.NoError(t, err, text)
		_, source, notes := pick(v, problem.Config{}, Request{})
		require.Empty(t, source, text)
		require.Contains(t, notes[0], why)
	}
	for _, text := range []string{"", " , ", "group", "group=-1", "group=x", "=3", "lanes=3"} {
		_, err := NamedTile(text)
		require.Error(t, err, "%q", text)
	}
}
