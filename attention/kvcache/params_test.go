package kvcache

import (
	"testing"

	"vkattn/internal/paramtest"
)

// blocks are the parameter blocks of this package.
var blocks = []paramtest.Block{
	{Module: "append_bda", Source: "append.comp", Params: appendParams{}, Bytes: appendPushBytes},
}

func TestParamsLieWhereModulesReadThem(t *testing.T) { paramtest.Lie(t, blocks) }

func TestParamsAreNamedAsInGLSL(t *testing.T) { paramtest.Names(t, "../../shaders", blocks) }
