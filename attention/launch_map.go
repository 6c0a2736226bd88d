package attention

import (
	"context"
	"errors"
	"fmt"

	"vkattn/internal/backend"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// The maps of the tiles that a mask modifier leaves: the call brings them, or a small kernel makes them first.

// BlockMap says which tiles of rows and keys a call's masks exclude, and which they leave whole. Kernels skip the former and
// apply no mask in the latter. A call whose mask modifier needs a map and that brings none makes one, which takes time:
// [Op.BlockMap] makes it once for many calls, as FlexAttention's create_block_mask does.
//
//	func (m *BlockMap) Close() error // releases the memory, when no call that was given the map is in flight; idempotent
type BlockMap = problem.BlockMap

// BlockMap makes the map of a call with a mask modifier, for [Args].BlockMap of later calls of this Op, forward and backward,
// that have the same shape, options, lengths, masks and contents of tables; other numbers may differ. It reads no Q, K and V.
// It runs behind the earlier work of the stream, nil is the device's default one, and waits. The caller closes the map, which
// has memory for the kernels of forward, of dQ and of dK and dV, the latter two where calls like a have gradients.
//
// Where the kernel of a call takes no map, or one of other tiles, the call ignores it and computes the same.
func (op *Op) BlockMap(ctx context.Context, s *Stream, a Args) (*BlockMap, error) {
	if err := op.usable(); err != nil {
		return nil, err
	}
	var tiles problem.TileMaps
	err := op.home.call("BlockMap", s, func(s backend.Stream) error {
		v := s.Vulkan()
		if v == nil { // its calls take no map
			var l tensors.Layouts
			return op.check(&l, &a)
		}
		if err := op.recordBlockMap(&tiles, v.Commands, v, &a); err != nil || tiles == (problem.TileMaps{}) {
			return err
		}
		return s.Wait(ctx)
	})
	m := problem.NewBlockMap(op, tiles)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// recordBlockMap records the kernels that make the maps of calls like a, forward and backward. It leaves empty those of kernels
// that take none.
func (op *Op) recordBlockMap(tiles *problem.TileMaps, c *vk.Commands, s *vk.Stream, a *Args) error {
	var l tensors.Layouts
	if err := op.check(&l, a); err != nil {
		return err
	}
	if err := op.checkNumbers(orderOf(s), a); err != nil || tensors.NoRows(a) {
		return err
	}
	r := op.request(&l, a)
	r.BlockMap = true
	p, err := op.prepare(r)
	if err != nil {
		return err
	}
	if err := op.order(c, a, l.All()); err != nil {
		return err
	}
	if p.maps != nil {
		if err := op.recordForwardMap(&tiles.Forward, c, p, r.Access, a, &l); err != nil {
			return err
		}
	}
	return op.recordBackwardMaps(tiles, c, r.Access, a)
}

// recordForwardMap records the kernel that makes the map of a forward kernel.
func (op *Op) recordForwardMap(m *problem.TileMap, c *vk.Commands, p *prepared, access Access, a *Args, l *tensors.Layouts) error {
	var of launch
	of.begin(op, p, access)
	groups, err := of.grid(a, &op.cfg, of.limits)
	if err != nil {
		return err
	}
	if err := op.newMap(m, of.mapSize(a, groups), p.mapTiles); err != nil {
		return err
	}
	if err := of.bindTensors(a, l.All(), 0, a.B); err != nil {
		return err
	}
	if err := of.bindOptions(a); err != nil {
		return err
	}
	return of.makeMapAt(c, m, 0)
}

// newMap allocates the memory of a map.
func (op *Op) newMap(m *problem.TileMap, size problem.MapSize, of problem.MapTiles) (err error) {
	m.Size, m.Of = size, of
	if m.Buffer, err = op.dev.NewBuffer(size.Bytes(), vk.BufferOptions{}); err != nil {
		return fmt.Errorf("attention: memory for the map of the mask modifier: %w", err)
	}
	return nil
}

// mapSize is the size of the call's map.
func (l *launch) mapSize(a *Args, groups [3]uint32) problem.MapSize {
	heads := int(groups[1]) / max(l.splitWorkgroups, 1)
	return plan.MapSizeOf(&l.op.cfg, a, l.mapTiles.Keys, [3]int{int(groups[0]), heads, int(groups[2] / l.slices)})
}

// bindMap binds the call's map, behind the options of the call. It records the kernel that makes the map if the call brings
// none, and a barrier.
func (l *launch) bindMap(c *vk.Commands, a *Args, groups [3]uint32) error {
	taken, atBias := l.options.TileMap()
	if !taken {
		return nil
	}
	m, at := problem.TileMap{Size: l.mapSize(a, groups), Of: l.mapTiles}, uint64(0)
	if b := problem.TilesOf(a.BlockMap).Forward; b.Is(m.Size, m.Of) {
		m.Buffer = b.Buffer
	} else {
		var err error
		if m.Buffer, at, err = c.Scratch(0, m.Size.Bytes()); err != nil {
			return fmt.Errorf("attention: memory for the map of the mask modifier: %w", err)
		}
		if err := l.makeMapAt(c, &m, at); err != nil {
			return err
		}
		if err := c.InnerBarrier(); err != nil {
			return err
		}
	}
	binding, strides := bindMap, &l.params.strideMap
	if atBias {
		binding, strides = bindBias, &l.params.strideBias
	}
	*strides = m.Size.Strides()
	return l.bindBuffer(binding, m.Buffer, at, m.Size.Bytes(), 4)
}

// makeMapAt records the kernel that makes a map in m's buffer, from a byte on. It has the parameters of the call, but that
// LSE is the map and that its splits are the words of a row.
func (l *launch) makeMapAt(c *vk.Commands, m *problem.TileMap, at uint64) error {
	of := *l
	if m.Size.Heads == 1 {
		of.params.Hq = max(l.options.PackRows(), 1)
	}
	of.params.stride[tensors.FirstOutput] = m.Size.Strides()
	if err := of.bindBuffer(bindLSE, m.Buffer, at, m.Size.Bytes(), 4); err != nil {
		return err
	}
	if err := of.writeParams(c); err != nil {
		return err
	}
	return of.dispatchOne(c, l.maps, m.Size.Grid())
}
