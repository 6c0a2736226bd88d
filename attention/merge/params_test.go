package merge

import (
	"testing"

	"vkattn/internal/paramtest"
)

// blocks are the parameter blocks of this package.
var blocks = []paramtest.Block{
	{Module: "merge_bda", Source: "merge.comp", Params: mergeParams{}, Bytes: mergePushBytes},
}

func TestParamsLieWhereModulesReadThem(t *testing.T) { paramtest.Lie(t, blocks) }

func TestParamsAreNamedAsInGLSL(t *testing.T) { paramtest.Names(t, "../../shaders", blocks) }
