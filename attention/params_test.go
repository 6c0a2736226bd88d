package attention

import (
	"testing"

	"vkattn/attention/internal/paramtest"
	"vkattn/attention/internal/plan"
)

// blocks are the parameter blocks of this package.
var blocks = []paramtest.Block{
	{Module: "scalar_bda", Source: "interface.glsl", Params: denseParams{}, Bytes: plan.DensePushBytes},
	{Module: "coopmat_f16_ssbo", Source: "interface.glsl", Params: denseParams{}, Bytes: plan.DensePushBytes},
	{Module: "scalar_general_bda", Source: "interface.glsl", Define: "GENERAL", Params: generalParams{}, Bytes: plan.GeneralPushBytes},
	{Module: "coopmat2_bf16_decode_bda", Source: "interface.glsl", Define: "GENERAL", Params: generalParams{}, Bytes: plan.GeneralPushBytes},
	{Module: "combine_bda", Source: "combine.comp", Params: combineParams{}, Bytes: combinePushBytes},
}

func TestParamsLieWhereModulesReadThem(t *testing.T) { paramtest.Lie(t, blocks) }

func TestParamsAreNamedAsInGLSL(t *testing.T) { paramtest.Names(t, "../shaders", blocks) }
