package tests

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// The engine runs calls of the tables and properties on one tier, on a device many in one
// submission.

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

// engine runs problems on one tier. It may be used by many goroutines.
type engine struct {
	dev        *vk.Device // nil: the CPU tier
	buffers    vk.BufferOptions
	experiment attention.Experiment

	mu  sync.Mutex
	ops map[attention.Config]*attention.Op
}

// newEngine makes an engine of the session for a tier.
func (s *session) newEngine(tt cases.Target) *engine {
	e := &engine{ops: map[attention.Config]*attention.Op{}}
	if tt.Tier != attention.TierCPU {
		e.dev, e.experiment = s.dev, s.experiment(tt)
		e.buffers.Exportable = tt.Tier == attention.TierCUDA // which refuses a call whose buffers CUDA does not reach
	}
	return e
}

func (e *engine) close() error {
	for _, op := range e.ops {
		if err := op.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) op(cfg attention.Config) (*attention.Op, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if op := e.ops[cfg]; op != nil {
		return op, nil
	}
	op, err := attention.NewExperiment(attention.On(e.dev), cfg, e.experiment)
	if err == nil {
		e.ops[cfg] = op
	}
	return op, err
}

// Problem is a call that can be made in host memory and on a device.
type Problem interface {
	HostArgs(images [][]byte) attention.Args
	DeviceArgs(buffers []*vk.Buffer) attention.Args
	String() string
}

// job is one call: a problem with the memory it finds.
type job struct {
	Problem
	cfg    attention.Config
	before [][]byte

	// Filled by run.
	after     [][]byte
	recording time.Duration // includes compiling if the pipeline is new
}

// run runs the jobs, on a device in one submission. It does not change job.before.
func (e *engine) run(jobs []*job) error {
	if e.dev == nil {
		return e.runCPU(jobs)
	}
	return e.runDevice(jobs)
}

// plan returns the plan of a job.
func (e *engine) plan(j *job) (plan attention.Plan, err error) {
	op, err := e.op(j.cfg)
	if err != nil || e.dev == nil {
		return plan, err // the CPU tier has one
	}
	var buffers []*vk.Buffer
	for _, b := range j.before {
		buf, failed := e.dev.NewBuffer(uint64(len(b)), e.buffers)
		if failed != nil {
			return plan, failed
		}
		defer closing(buf, &err)
		buffers = append(buffers, buf)
	}
	return op.PlanFor(j.DeviceArgs(buffers))
}

func (e *engine) runCPU(jobs []*job) error {
	for _, j := range jobs {
		op, err := e.op(j.cfg)
		if err != nil {
			return fmt.Errorf("%v: %w", j.Problem, err)
		}
		j.after = nil
		for _, b := range j.before {
			j.after = append(j.after, append([]byte(nil), b...))
		}
		if err := op.Forward(nil, j.HostArgs(j.after)); err != nil {
			return fmt.Errorf("%v: %w", j.Problem, err)
		}
	}
	return nil
}

// patience is how long a submission may take on the slowest driver.
const patience = 5 * time.Minute

func (e *engine) runDevice(jobs []*job) (err error) {
	s, err := e.dev.NewStream("tests")
	if err != nil {
		return err
	}
	defer closing(s, &err)
	var total int64
	buffers := make([][]*vk.Buffer, len(jobs))
	for i, j := range jobs {
		for _, b := range j.before {
			buf, err := e.dev.NewBuffer(uint64(len(b)), e.buffers)
			if err != nil {
				return err
			}
			defer closing(buf, &err)
			if err := s.Upload(buf, 0, b); err != nil {
				return err
			}
			buffers[i] = append(buffers[i], buf)
			total += align16(int64(len(b)))
		}
	}
	back, err := e.dev.NewBuffer(uint64(total), vk.BufferOptions{Memory: vk.Readback})
	if err != nil {
		return err
	}
	defer closing(back, &err)
	if err := s.Barrier(); err != nil {
		return err
	}
	for i, j := range jobs {
		start := time.Now()
		op, err := e.op(j.cfg)
		if err == nil {
			err = op.Forward(attention.OnStream(s), j.DeviceArgs(buffers[i]))
		}
		j.recording = time.Since(start)
		if err != nil {
			return fmt.Errorf("%v: %w", j.Problem, err)
		}
	}
	if err := s.Barrier(); err != nil {
		return err
	}
	var at int64
	for i, j := range jobs {
		for n, b := range j.before {
			size := uint64(len(b))
			err := s.Copy(vk.BufferRange{Buffer: back, Offset: uint64(at), Size: size}, vk.BufferRange{Buffer: buffers[i][n], Size: size})
			if err != nil {
				return err
			}
			at += align16(int64(size))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Wait(ctx); err != nil {
		return err
	}
	at = 0
	for _, j := range jobs {
		j.after = nil
		for _, b := range j.before {
			j.after = append(j.after, append([]byte(nil), back.Bytes()[at:at+int64(len(b))]...))
			at += align16(int64(len(b)))
		}
	}
	return nil
}

// callMemory is the memory of a call.
type callMemory struct {
	stream  *vk.Stream // nil: the call is in host memory
	host    [][]byte
	buffers []*vk.Buffer
}

func (m *callMemory) tensor(i int) attention.Tensor {
	if m.stream == nil {
		return attention.Tensor{Host: m.host[i]}
	}
	return attention.Tensor{Buffer: m.buffers[i]}
}

func (m *callMemory) barrier() error {
	if m.stream == nil {
		return nil
	}
	return m.stream.Barrier()
}

// onImages makes a call on copies of images, on dev or, if it is nil, on the CPU. It returns what they hold then. A nil image has
// no memory.
func onImages(dev *vk.Device, images [][]byte, call func(m *callMemory) error) (after [][]byte, err error) {
	m := callMemory{buffers: make([]*vk.Buffer, len(images))}
	for _, b := range images {
		m.host = append(m.host, bytes.Clone(b))
	}
	if dev == nil {
		return m.host, call(&m)
	}
	if m.stream, err = dev.NewStream("tests"); err != nil {
		return nil, err
	}
	defer closing(m.stream, &err)
	for i, b := range images {
		if b == nil {
			continue
		}
		if m.buffers[i], err = dev.NewBuffer(uint64(len(b)), vk.BufferOptions{}); err != nil {
			return nil, err
		}
		defer closing(m.buffers[i], &err)
		if err := m.stream.Upload(m.buffers[i], 0, b); err != nil {
			return nil, err
		}
	}
	for _, step := range []func() error{m.barrier, func() error { return call(&m) }, m.barrier} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i, b := range m.buffers {
		if b == nil {
			continue
		}
		if err := m.stream.Download(ctx, m.host[i], b, 0); err != nil {
			return nil, err
		}
	}
	return m.host, m.stream.Wait(ctx)
}

// closing closes c and keeps the first error.
func closing(c interface{ Close() error }, err *error) {
	if e := c.Close(); *err == nil {
		*err = e
	}
}

func align16(n int64) int64 { return (n + 15) &^ 15 }
