package attention

import (
	"errors"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Maps of tiles of the kernels of dQ and of dK and dV, as launch_map.go has that of a forward kernel.

// findMaps finds the maps of the call's kernels: those that it brings, or else at the end of scratch memory. It records the
// kernels that make the latter.
func (l *backwardLaunch) findMaps(c *vk.Commands) error {
	at, given := l.statsAt+l.scratchBytes, problem.TilesOf(l.args.BlockMap)
	for i := range l.kernels {
		k := &l.kernels[i]
		if !k.TakesMap() {
			continue
		}
		m, of := k.MapIn(&l.tileMaps), k.Map.Tiles()
		if *m = *k.MapIn(&given); m.Is(k.MapSize, of) {
			continue
		}
		at -= k.MapBytes()
		*m = problem.TileMap{Buffer: l.scratch, At: at, Size: k.MapSize, Of: of}
		if err := l.makeMap(c, l.maps[i], k, m); err != nil {
			return err
		}
	}
	return nil
}

// makeMap records the kernel that makes the map of k. Its parameters are those of the call, except that DX is the map.
func (l *backwardLaunch) makeMap(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel, m *problem.TileMap) error {
	common := l.n
	l.params.stride[strideDX] = m.Size.Strides()
	if err := l.bind(bwdDX, m.Buffer, m.At, m.Size.Bytes(), 4); err != nil {
		return err
	}
	held := l.held[:l.n]
	l.n = common
	return l.dispatchOne(c, pipeline, k, m.Size.Grid(), held)
}

// bindMap binds the map of k, if it takes one.
func (l *backwardLaunch) bindMap(k *plan.BackwardKernel) error {
	if !k.TakesMap() {
		return nil
	}
	binding, strides := bwdMap, &l.params.strideMap
	if _, atBias := k.Variant.Options.TileMap(); atBias {
		binding, strides = bwdBias, &l.params.strideBias
	}
	m := k.MapIn(&l.tileMaps)
	*strides = m.Size.Strides()
	return l.bind(binding, m.Buffer, m.At, m.Size.Bytes(), 4)
}

// recordBackwardMaps records the kernels that make the maps of gradients of calls like a, for dQ, dK and dV. It records nothing
// if such calls have no gradients.
func (op *Op) recordBackwardMaps(tiles *problem.TileMaps, c *vk.Commands, access Access, a *Args) error {
	if a.Pages != nil || op.cfg.KeyType != KVSame || op.cfg.F32O {
		return nil
	}
	r := op.typicalBackward(a.Shape)
	r.Options, r.Maps, r.Access, r.BlockMap = plan.OptionsOf(a, &op.cfg), plan.MapsOf(&op.cfg, a), access, true
	if v := a.Varlen; v != nil {
		r.TotalQ, r.TotalK = v.TotalQ, v.TotalK
	}
	chosen, err := plan.MakeBackward(op.dev, &op.cfg, &r, op.backward.pick)
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range chosen.Kernels {
		k := &chosen.Kernels[i]
		if !k.TakesMap() {
			continue
		}
		m := k.MapIn(tiles)
		if err := op.newMap(m, k.MapSize, k.Map.Tiles()); err != nil {
			return err
		}
		pipeline, err := op.maps.Of(op.dev, &op.cfg, k.Map)
		if err != nil {
			return err
		}
		l := backwardLaunch{preparedBackward: &preparedBackward{access: r.Access}, op: op, args: &BackwardArgs{Args: *a}, scratch: m.Buffer}
		if err := l.bindOptions(); err != nil {
			return err
		}
		if err := l.makeMap(c, pipeline, k, m); err != nil {
			return err
		}
	}
	return nil
}
