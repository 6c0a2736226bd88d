package parallel

// The ring's forward pass with ScheduleAhead. A device executes its own kernels and those that move
// messages by turns, so a message that overlaps the computation takes time from it for as long as it waits
// for the other rank. Here the device is idle while messages move. All ranks start them at about the
// same time, and one exchange has the blocks of all ranks for some key heads.

// aheadForward computes O and LSE of this rank's rows, with all blocks of some heads at a time.
func (c *call) aheadForward(q, k, v, o, lse view) error {
	a, group := c.forwardRing, q.heads/k.heads
	segments, runs := c.segments(c.group)
	memory := c.makeStates(segments, q.batch, a.heads*group, v.dim)
	arrived := make([]block, c.outer) // by step
	for t := 1; t < c.outer; t++ {
		keys := countOf(c.groupKeys[(c.group-t+c.outer)%c.outer])
		arrived[t] = block{c.new(k.dtype, k.batch, a.ahead, keys, k.dim), c.new(v.dtype, v.batch, a.ahead, keys, v.dim)}
	}
	for first := 0; first < k.heads; first += a.ahead {
		n := min(a.ahead, k.heads-first)
		blocks := []block{{k.headsFrom(first, n), v.headsFrom(first, n)}} // by step
		for _, b := range arrived[1:] {
			blocks = append(blocks, block{resized(b.k, n, b.k.rows), resized(b.v, n, b.v.rows)})
		}
		arriving, err := c.startBlocks(blocks, arena{memory: memory})
		if err != nil {
			return err
		}
		for h := 0; h < n; h += a.heads {
			// What is recorded runs when it is submitted, so the first heads are recorded while their blocks
			// arrive. Uploads of packed sequences may submit by themselves.
			if h == 0 && (c.s == nil || c.packed()) {
				if err := c.g.wait(c.ctx, arriving); err != nil {
					return err
				}
				arriving = nil
			}
			at, heads := (first+h)*group, a.heads*group
			if err := c.aheadHeads(segments, runs, blocks, h, q.headsFrom(at, heads), o.headsFrom(at, heads), lse.headsFrom(at, heads)); err != nil {
				return c.abandon(err, arriving)
			}
			if arriving != nil {
				if err := c.g.wait(c.ctx, arriving); err != nil {
					return err
				}
				arriving = nil
			}
			if _, err := c.submit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// aheadHeads computes O and LSE of a group of heads from key head h of the blocks on.
func (c *call) aheadHeads(segments []segment, runs [][]run, blocks []block, h int, q, o, lse view) error {
	beginHeads(segments)
	a := c.forwardRing
	for t := 0; t < c.outer; {
		end := min(t+a.states, c.outer)
		if t == 0 {
			end = min(end+1, c.outer) // this rank's block needs no merge
		}
		var steps []work
		for ; t < end; t++ {
			steps = append(steps, work{runs[t], block{blocks[t].k.headsFrom(h, a.heads), blocks[t].v.headsFrom(h, a.heads)}})
		}
		if err := c.attend(segments, steps, q, o); err != nil {
			return err
		}
	}
	c.endHeads(segments, o, lse)
	return c.err
}

// startBlocks begins to send this rank's block, the first, to all ranks of the ring and to receive theirs,
// when the device is idle. The block is copied to memory where it is not packed, or the transport cannot
// move it.
func (c *call) startBlocks(blocks []block, memory arena) (Pending, error) {
	own := blocks[0]
	for _, x := range []*view{&own.k, &own.v} {
		if !c.isDense(*x) {
			packed := memory.new(x.dtype, x.batch, x.heads, x.rows, x.dim)
			c.copy(packed, *x)
			*x = packed
		}
	}
	var sends, receives []Transfer
	for t := 1; t < c.outer; t++ {
		sends = append(sends, transfers(c.peer(t), own.k, own.v)...)
		receives = append(receives, transfers(c.peer(-t), blocks[t].k, blocks[t].v)...)
	}
	if err := c.sync(c.ctx); err != nil {
		return nil, err
	}
	return c.g.t.Exchange(sends, receives)
}
