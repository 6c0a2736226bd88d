package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/randscore"
	"vkattn/internal/testlevel"
	"vkattn/shaders"
)

// The validator accepts modules with random modifiers: three of each module, with tables.
func TestModifiedModulesAreValid(t *testing.T) {
	compiler := needCompiler(t)
	r := rand.New(rand.NewPCG(testlevel.Seed(t), 0))
	file := filepath.Join(t.TempDir(), "modified.spv")
	tables := []score.Table{score.IntTable("doc", 1), score.FloatTable("bias", 2), score.FloatTable("cube", 3)}
	for _, v := range shaders.Catalog() {
		m, err := shaders.Get(v.Name)
		require.NoError(t, err)
		if _, err := m.Modified(score.Modifiers{Mask: score.Causal()}); err != nil {
			require.ErrorContains(t, err, "has no function")
			continue
		}
		for range 3 {
			modifiers := score.Modifiers{Score: randscore.Draw(r, score.TypeFloat, 6, true, tables...),
				Mask: randscore.Draw(r, score.TypeBool, 6, false, tables...), Tiles: v.Source == "tile_map.comp"}
			if v.Source == "backward_scalar_table.comp" {
				modifiers.Gradient = tables[2]
				modifiers.Score = score.Add(score.Mul(modifiers.Score, tables[2].At(score.Head, score.J, score.I)), tables[2].At(score.B, score.J, score.Row))
			}
			modified, err := m.Modified(modifiers)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, modified.Code, 0o600))
			out, err := exec.Command(compiler.val, "--target-env", v.Target, file).CombinedOutput()
			require.NoError(t, err, "%s: %v; %v: %s", v.Name, modifiers.Score, modifiers.Mask, out)
		}
	}
}
