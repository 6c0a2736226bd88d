package attention

import (
	"testing"
	"unsafe"

	"vkattn/internal/paramtest"
	"vkattn/internal/plan"
)

// blocks are the parameter blocks of this package.
var blocks = []paramtest.Block{
	{Module: "scalar_bda", Source: "interface.glsl", Params: denseParams{}, Bytes: plan.DensePushBytes},
	{Module: "coopmat_f16_ssbo", Source: "interface.glsl", Params: denseParams{}, Bytes: plan.DensePushBytes},
	{Module: "scalar_general_bda", Source: "interface.glsl", Define: "GENERAL", Params: generalParams{}, Bytes: plan.GeneralPushBytes},
	{Module: "coopmat2_bf16_decode_bda", Source: "interface.glsl", Define: "GENERAL", Params: generalParams{}, Bytes: plan.GeneralPushBytes},
	{Module: "combine_bda", Source: "combine.comp", Params: combineParams{}, Bytes: combinePushBytes},
	{Module: "backward_scalar_q_bda", Source: "backward_interface.glsl", Params: backwardParams{}, Bytes: plan.BackwardPushBytes},
	{Module: "backward_scalar_kv_bda", Source: "backward_interface.glsl", Params: backwardParams{}, Bytes: plan.BackwardPushBytes},
	{Module: "backward_delta_bda", Source: "backward_delta.comp", Params: deltaParams{}, Bytes: deltaPushBytes},
	{Module: "backward_table_sum_ssbo", Source: "backward_table_sum.comp", Params: tableSumParams{}, Bytes: tableSumPushBytes},
	{Module: "backward_sinks_bda", Source: "backward_sinks.comp", Params: sinksParams{}, Bytes: sinksPushBytes},
}

// Tables of modifiers begin behind the parameters that push constants have too, where package shaders looks for them.
var _ = [1]bool{}[unsafe.Offsetof(bufferParams{}.tables)-plan.GeneralPushBytes]
var _ = [1]bool{}[unsafe.Sizeof(bufferParams{})-plan.GeneralParamBytes]

func TestParamsLieWhereModulesReadThem(t *testing.T) { paramtest.Lie(t, blocks) }

func TestParamsAreNamedAsInGLSL(t *testing.T) { paramtest.Names(t, "../shaders", blocks) }
