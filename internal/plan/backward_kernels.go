package plan

import (
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// wantedKernel is a kernel of a request with the tables of its tiles.
type wantedKernel struct {
	kernel  backwardKernel
	outputs string
	scalar  []backwardTile
	coopmat []backwardTableTile // nil: the kernel of tier scalar serves the coopmat tiers too
	table   int                 // of tensors.Tables
}

// wantedKernels lists the kernels that compute a request on a tier, in the order in which they
// run. chunked says that dS is stored, from which another kernel computes dQ, and stages that one kernel stores it and P and
// others compute dK and dV from these. mapped says that kernels take maps of tiles: keys that all rows attend to are then the
// longest work, which starts first.
func wantedKernels(caps *vk.Caps, tier problem.Tier, r *BackwardRequest, chunked, mapped, stages bool) (list []wantedKernel) {
	coopmatRows, coopmatKeys := backwardCoopmatRowTiles, backwardCoopmatKeyTiles
	switch {
	case tier == problem.TierCoopMat2:
		coopmatKeys = backwardCoopmat2KeyTiles
	case isRDNA3(caps):
		coopmatRows, coopmatKeys = rdna3RowTiles, rdna3KeyTiles
	}
	for _, k := range []struct {
		wanted bool
		wantedKernel
	}{
		{true, wantedKernel{KernelStats, "stats", nil, nil, 0}},
		{!r.PartialKeys, wantedKernel{KernelLSE, "LSE", backwardRowTiles, backwardLSETiles, 0}},
		{r.Want.Q && !chunked && !mapped, wantedKernel{KernelDQ, "dQ", backwardRowTiles, coopmatRows, 0}},
		{stages, wantedKernel{KernelScores, "P dS", nil, coopmatKeys, 0}},
		{stages && r.Want.V, wantedKernel{KernelDV, "dV", nil, coopmatKeys, 0}},
		{stages && r.Want.K, wantedKernel{KernelDK, "dK", nil, coopmatKeys, 0}},
		{!stages && (r.Want.K || r.Want.V || chunked), wantedKernel{KernelDKDV, dKdV(r.Want), backwardKeyTiles, coopmatKeys, 0}},
		{r.Want.Q && !chunked && mapped, wantedKernel{KernelDQ, "dQ", backwardRowTiles, coopmatRows, 0}},
		{chunked && r.Want.Q, wantedKernel{KernelDSK, "dQ", nil, backwardAddTiles, 0}},
		{r.Want.Bias, wantedKernel{KernelDBias, "dBias", backwardRowTiles, nil, 0}},
		{r.Want.Sinks, wantedKernel{KernelDSinks, "dSinks", nil, nil, 0}},
	} {
		if k.wanted {
			list = append(list, k.wantedKernel)
		}
	}
	return list
}

// dKdV names what the kernel of dK and dV writes.
func dKdV(want tensors.GradientSet) string {
	switch {
	case !want.K && !want.V:
		return "dS"
	case !want.V:
		return "dK"
	case !want.K:
		return "dV"
	}
	return "dK dV"
}
