package vk

import (
	"math"
	"time"
)

// Mark is a timestamp recorded in a stream.
type Mark struct {
	s   *Stream
	seq uint64
}

// maxTicks is the number of timestamps that a stream remembers.
const maxTicks = 1 << 16

// lostTick stands for a timestamp whose batch was never executed.
const lostTick = ^uint64(0)

// stamp is a finished timestamp with the host's times of hostNow between which the device took it.
type stamp struct {
	ticks      uint64
	sent, seen time.Duration // of its batch: submitted, and found finished
}

// tickLog has the timestamps of a stream in the order of recording.
type tickLog struct {
	recorded uint64  // number of marks recorded
	first    uint64  // mark that values[0] belongs to
	values   []stamp // of finished marks
}

func (t *tickLog) add(v stamp) {
	if len(t.values) >= 2*maxTicks {
		t.values = append(t.values[:0], t.values[maxTicks:]...)
		t.first += maxTicks
	}
	t.values = append(t.values, v)
}

func (t *tickLog) lose(n int) {
	for range n {
		t.add(stamp{ticks: lostTick})
	}
}

// read reads the timestamps of a finished batch.
func (t *tickLog) read(d *Device, b *batch) error {
	seen := hostNow()
	for i := 0; b.marks > 0; i++ {
		n := min(b.marks, queryCount)
		if d.lost.Load() {
			t.lose(n)
		} else {
			ticks, r := hostQueryResults(d.c, &b.recorder, b.queries[i], n)
			if err := d.check("vkGetQueryPoolResults", r); err != nil {
				t.lose(b.marks)
				b.marks = 0
				return err
			}
			for _, v := range ticks {
				t.add(stamp{v, b.sent, seen})
			}
		}
		b.marks -= n
	}
	return nil
}

// Timestamp records the time of the device's clock when all commands before it have
// finished. Record a Barrier before it if earlier work may overlap later work. It works on
// streams only. If the queue has no clock (Limits.TimestampValidBits is 0) the error
// matches ErrUnsupported.
func (c *Commands) Timestamp() (Mark, error) {
	const op = "Timestamp"
	if err := c.Device().enter(op); err != nil {
		return Mark{}, err
	}
	defer c.d.leave()
	d := c.d
	if c.s == nil {
		return Mark{}, unsupported(op, "the caller's command buffers are timed by the caller")
	}
	if d.info.Caps.Limits.TimestampValidBits == 0 {
		return Mark{}, unsupported(op, "the queue has no timestamps")
	}
	b, err := c.record(op)
	if err != nil {
		return Mark{}, err
	}
	pool, index := b.marks/queryCount, b.marks%queryCount
	if pool == len(b.queries) {
		var q uint64
		if err := d.check("vkCreateQueryPool", hostCreateQueries(d.c, queryCount, &q)); err != nil {
			return Mark{}, err
		}
		b.queries = append(b.queries, q)
	}
	if index == 0 {
		hostCmdResetQueries(d.c, &b.recorder, b.queries[pool], queryCount)
	}
	hostCmdTimestamp(d.c, &b.recorder, b.queries[pool], uint32(index))
	b.marks++
	seq := c.s.ticks.recorded
	c.s.ticks.recorded++
	return Mark{c.s, seq}, nil
}

// Ticks is the raw value of a finished mark, as the driver gives it, in units of Limits.TimestampPeriodNs, with
// Limits.TimestampValidBits valid bits. The error matches ErrInvalid for a mark of another
// stream, for a mark whose work has not finished or was never executed, and for a mark
// older than the last 65536.
func (s *Stream) Ticks(m Mark) (uint64, error) {
	const op = "Ticks"
	if err := s.use(op); err != nil {
		return 0, err
	}
	defer s.d.leave()
	v, err := s.stamp(op, m)
	return v.ticks, err
}

func (s *Stream) stamp(op string, m Mark) (stamp, error) {
	if m.s != s {
		return stamp{}, invalid(op, "the mark is of another stream")
	}
	if err := s.retire(); err != nil {
		return stamp{}, err
	}
	t := &s.ticks
	switch {
	case m.seq < t.first:
		return stamp{}, invalid(op, "the mark is older than the last %d", maxTicks)
	case m.seq >= t.first+uint64(len(t.values)):
		return stamp{}, invalid(op, "the mark's work has not finished")
	case t.values[m.seq-t.first].ticks == lostTick:
		return stamp{}, invalid(op, "the mark's work was not executed")
	}
	return t.values[m.seq-t.first], nil
}

// clockSlack is the share by which the clocks of device and host may disagree.
const clockSlack = 16

// Elapsed is the device time from mark a to mark b, which was recorded after a. Both must
// have finished (after Wait). It is 0 if the clock stood still: the work between the marks is
// shorter than a tick, or the device has no clock that runs. Elapsed returns the same errors as
// Ticks. For marks in the wrong order the error matches ErrInvalid. If the clock ran backwards, or by
// more than the host's between submission and end of the work, it matches ErrTimestamps.
func (s *Stream) Elapsed(a, b Mark) (time.Duration, error) {
	const op = "Elapsed"
	if err := s.use(op); err != nil {
		return 0, err
	}
	defer s.d.leave()
	if a.seq > b.seq {
		return 0, invalid(op, "the marks are in the wrong order")
	}
	x, err := s.stamp(op, a)
	if err != nil {
		return 0, err
	}
	y, err := s.stamp(op, b)
	if err != nil {
		return 0, err
	}
	l := &s.d.info.Caps.Limits
	took := ticksToDuration(x.ticks, y.ticks, l.TimestampValidBits, l.TimestampPeriodNs)
	if most := y.seen - x.sent; took > most+most/clockSlack {
		return 0, refuse(op, ErrTimestamps, "timestamps %d and %d of work that took at most %v", x.ticks, y.ticks, most)
	}
	return took, nil
}

// ticksToDuration converts ticks. A counter of fewer than 64 bits may have wrapped once. A time that is too
// long for a Duration, as of a clock that ran backwards, is the longest.
func ticksToDuration(from, to uint64, validBits uint32, periodNs float64) time.Duration {
	mask := ^uint64(0)
	if validBits < 64 {
		mask = 1<<validBits - 1
	}
	n := (to - from) & mask
	if ns := float64(n) * periodNs; ns < math.MaxInt64 {
		return time.Duration(ns)
	}
	return math.MaxInt64
}

// Calibration is a simultaneous reading of the clocks of device and host.
type Calibration struct {
	Ticks     uint64        // as Stream.Ticks
	Host      time.Duration // CLOCK_MONOTONIC; on Windows of QueryPerformanceCounter
	Deviation time.Duration // bound of the time between the two readings
}

// Calibrate reads the clocks of device and host, to convert device times to host times.
// Without Caps.CalibratedTimestamps the error matches ErrUnsupported. If the host's time is
// not that of the call, or the device's is 0, it matches ErrTimestamps.
func (d *Device) Calibrate() (Calibration, error) {
	const op = "Calibrate"
	if err := d.enter(op); err != nil {
		return Calibration{}, err
	}
	defer d.leave()
	if !d.info.Caps.CalibratedTimestamps {
		return Calibration{}, unsupported(op, "the device does not calibrate its clock against the host's")
	}
	var ticks, host, deviation, before, after uint64
	r := hostCalibrate(d.c, &ticks, &host, &deviation, &before, &after)
	if err := d.check("vkGetCalibratedTimestamps", r); err != nil {
		return Calibration{}, err
	}
	if slack := min(deviation, before); ticks == 0 || deviation > math.MaxInt64 || host < before-slack || host > after+slack {
		return Calibration{}, refuse(op, ErrTimestamps, "the device's clock is at %d, and the host's, from %d to %d ns, at %d", ticks, before, after, host)
	}
	return Calibration{ticks, time.Duration(host), time.Duration(deviation)}, nil
}

// Dispatched is a dispatch, or a launch of a cubin, that Observe timed. Ticks and Elapsed
// have its times when its batch has finished.
type Dispatched struct {
	Pipeline    *Pipeline      // open while the observer runs; nil for a launch
	Function    *CubinFunction // open while the observer runs; nil for a dispatch
	Name        string         // of the pipeline or the function
	Groups      [3]uint32      // workgroups, or CTAs
	LocalSize   [3]uint32      // invocations of a workgroup, or threads of a CTA
	SharedBytes uint32         // dynamic shared memory of a launch
	Begin, End  Mark
}

// Observe calls f with every dispatch and every launch that is recorded from now on. A nil f
// ends it. A barrier and a timestamp are recorded before each of them, and a timestamp after
// it, so that no other command of the stream overlaps it. Work that would otherwise overlap
// takes longer. f must not use the stream. The error matches ErrUnsupported if the queue has
// no timestamps.
func (s *Stream) Observe(f func(Dispatched)) error {
	const op = "Observe"
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if f != nil && s.d.info.Caps.Limits.TimestampValidBits == 0 {
		return unsupported(op, "the queue has no timestamps")
	}
	s.observer = f
	return nil
}

// Observed reports whether the stream has an observer.
func (s *Stream) Observed() bool { return s != nil && s.observer != nil }

// observed records a dispatch or a launch of an observed stream: with the barrier and the
// timestamps.
func (c *Commands) observed(d Dispatched, record func() error) error {
	if err := c.InnerBarrier(); err != nil {
		return err
	}
	begin, err := c.Timestamp()
	if err != nil {
		return err
	}
	if err := record(); err != nil {
		return err
	}
	end, err := c.Timestamp()
	if err != nil {
		return err
	}
	d.Begin, d.End = begin, end
	c.s.observer(d)
	return nil
}
