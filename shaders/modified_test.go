package shaders

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
)

// The kernel of tile maps takes the mask, and the question about tiles in place of the score modifier, whose tables keep
// their numbers.
func TestTileMapsTakeMasks(t *testing.T) {
	doc, bias := score.IntTable("doc", 1), score.FloatTable("bias", 2)
	for _, name := range []string{"tile_map_ssbo", "tile_map_bda"} {
		m, err := Get(name)
		require.NoError(t, err)
		modified, err := m.Modified(score.Modifiers{Score: score.Softcap(score.S, 30), Mask: score.SinksWindow(4, 100), Tiles: true})
		require.NoError(t, err)
		before, err := m.Reflect()
		require.NoError(t, err)
		r, err := modified.Reflect()
		require.NoError(t, err)
		require.Equal(t, before.SpecIDs(), r.SpecIDs())
		require.Equal(t, before.Bindings(), r.Bindings())
		_, err = m.Modified(score.Modifiers{Score: score.Softcap(score.S, 30)})
		require.ErrorContains(t, err, "has no function")
	}
	m, err := Get("tile_map_ssbo")
	require.NoError(t, err)
	m, err = m.Modified(score.Modifiers{Score: bias.At(score.Head, score.J), Mask: score.Documents(doc), Tiles: true})
	require.NoError(t, err)
	r, err := m.Reflect()
	require.NoError(t, err)
	require.Equal(t, []uint32{ParamsBinding, ParamsBinding + 1, ParamsBinding + 2}, r.Bindings()[len(r.Bindings())-3:])
}

// takesModifiers reports whether a module has the functions that modifiers replace.
func takesModifiers(v Variant) bool {
	if kernel, ok := strings.CutPrefix(v.Source, "backward_"); ok {
		return slices.Contains([]string{"scalar_lse.comp", "scalar_q.comp", "scalar_kv.comp", "scalar_bias.comp", "scalar_table.comp", "coopmat_lse.comp",
			"coopmat_q.comp", "coopmat_kv.comp"}, kernel)
	}
	return slices.Contains(v.Defines, "GENERAL=1") && v.Source != "tile_map.comp" && v.Source != "convert.comp"
}

// Modules of the general, the decode and the gradient kernels take modifiers and their tables. No other
// module does.
func TestModulesTakeModifiers(t *testing.T) {
	doc := score.IntTable("doc", 1)
	for _, v := range Catalog() {
		m, err := Get(v.Name)
		require.NoError(t, err)
		plain, err := m.Modified(score.Modifiers{Score: score.Softcap(score.S, 30), Mask: score.Causal()})
		if !takesModifiers(v) {
			require.ErrorContains(t, err, "has no function", v.Name)
			continue
		}
		require.NoError(t, err, v.Name)
		require.NotEqual(t, m.Hash, plain.Hash)
		again, err := m.Modified(score.Modifiers{Score: score.Softcap(score.S, 30), Mask: score.Causal()})
		require.NoError(t, err)
		require.Same(t, plain, again)
		r, err := plain.Reflect()
		require.NoError(t, err)
		before, err := m.Reflect()
		require.NoError(t, err)
		require.Equal(t, before.SpecIDs(), r.SpecIDs())
		require.Equal(t, before.Bindings(), r.Bindings())
		tables, err := m.Modified(score.Modifiers{Mask: score.Documents(doc)})
		require.NoError(t, err)
		r, err = tables.Reflect()
		require.NoError(t, err)
		if slices.Contains(v.Defines, "BDA=1") { // the sizes of the tables, and the table
			require.Empty(t, before.Bindings())
			require.Equal(t, []uint32{0, 1}, r.Bindings(), v.Name)
			require.Equal(t, before.PushConstantBytes(), r.PushConstantBytes(), v.Name)
			continue
		}
		params := uint32(ParamsBinding)
		if strings.HasPrefix(v.Source, "backward_") {
			params = BackwardParamsBinding
		}
		require.Equal(t, append(before.Bindings(), params+1), r.Bindings())
	}
}

// A module that is cut off, or is none, is an error and no panic.
func TestModifiersOfBrokenModules(t *testing.T) {
	m, err := Get("scalar_general_ssbo")
	require.NoError(t, err)
	modifiers := score.Modifiers{Score: score.Softcap(score.S, 30), Mask: score.Documents(score.IntTable("doc", 1))}
	at := score.TableLayout{ParamsBinding: ParamsBinding, ParamsOffset: tablesOffset, FirstBinding: ParamsBinding + 1}
	for n := 0; n < len(m.Code); n += 4 * (1 + n/400) {
		code := m.Code[:n]
		_, err := score.Rewrite(code, modifiers, at)
		if n < 4096 { // declarations
			require.Error(t, err, n)
		}
		flipped := slices.Clone(m.Code)
		flipped[n] ^= 0x5a
		_, _ = score.Rewrite(flipped, modifiers, at)
	}
}
