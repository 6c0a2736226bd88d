//go:build cgo && linux

package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Calls in host memory on a GPU. Each tensor gets memory of the device with its strides: inputs are copied
// there, and the rows of outputs back.

// copies are the tensors of a call in memory of the device.
type copies struct {
	device *device
	list   []backend.Memory
	inputs map[span]backend.Memory // that are there already, as where K is V
	back   []output
	copy   bool // false: the call computes nothing
}

// span is a range of host memory.
type span struct {
	first *byte
	n     int
}

type output struct {
	layout tensors.Layout // in host memory
	memory backend.Memory
}

// staged calls f with tensors where the device of the operation computes.
func (a *arguments) staged(run bool, f func() error) error {
	if a.op.device.Vulkan() == nil && !a.op.device.isCUDA() || a.Q.Host == nil {
		return f()
	}
	c := &copies{device: a.op.device, inputs: map[span]backend.Memory{}, copy: run}
	defer c.close()
	err := c.make(a)
	if err != nil {
		return err
	}
	if err := f(); err != nil || !run {
		return err
	}
	ctx, cancel := c.device.waiting()
	defer cancel()
	return c.fetch(ctx)
}

// make checks a call and moves its tensors.
func (c *copies) make(a *arguments) error {
	cfg := problem.Config(a.op.Config())
	host := a.BackwardArgs
	if a.backward {
		var l tensors.BackwardTensors
		if err := l.CheckAll(&cfg, &host); err != nil {
			return err
		}
		if err := l.Each(func(i int, t *tensors.Layout) error {
			old := host.Varlen != nil || host.Accumulate
			to := memoryOf(&a.BackwardArgs, t.Field)
			if i >= tensors.BackwardDTables {
				to = &tensors.TableOutput(&cfg, &a.BackwardArgs, i-tensors.BackwardDTables).Vector
			}
			return c.move(t, i >= tensors.FirstGradient, old, to)
		}); err != nil {
			return err
		}
	} else {
		var l tensors.Layouts
		if err := l.Check(&cfg, &host.Args); err != nil {
			return err
		}
		for i, t := range l.All() {
			if err := c.move(&t, i >= tensors.FirstOutput, host.Varlen != nil, memoryOf(&a.BackwardArgs, t.Field)); err != nil {
				return err
			}
		}
	}
	var t tensors.Layout
	return tensors.EachOption(&cfg, &host.Args, &t, func(of tensors.OptionTensor) error {
		to := memoryOf(&a.BackwardArgs, t.Field)
		if of >= tensors.FirstTable {
			name := tensors.Tables(&cfg)[of-tensors.FirstTable].Name()
			for i := range a.Tables {
				if a.Tables[i].Name == name {
					to = &a.Tables[i].Vector
				}
			}
		}
		return c.move(&t, of == tensors.MaxLogits, false, to)
	})
}

// move gives a tensor or a vector, to, memory of the device. old says that a call may leave some of an output as it was.
func (c *copies) move(l *tensors.Layout, out, old bool, to any) error {
	t := &l.Tensor
	var n int64
	if l.Counts[0] > 0 {
		n = (l.Counts[0]-1)*l.Steps[0] + int64(l.Extent())
	}
	host := t.Host[t.Offset*l.Size:][:n*l.Size]
	key := span{n: len(host)}
	if len(host) > 0 {
		key.first = &host[0]
	}
	m := c.inputs[key]
	if out || m == nil {
		var err error
		if m, err = newMemory(c.device, int64(len(host))); err != nil {
			return err
		}
		c.list = append(c.list, m)
		if c.copy && (!out || old) && len(host) > 0 {
			if err := c.device.do("vkattn_op", func(s backend.Stream) error { return m.Write(s, 0, host) }); err != nil {
				return err
			}
		}
	}
	if out {
		c.back = append(c.back, output{*l, m})
	} else {
		c.inputs[key] = m
	}
	switch to := to.(type) {
	case *attention.Tensor:
		to.Buffer, to.Memory, to.Host, to.Offset = m.Tensor().Buffer, m.Tensor().Memory, nil, 0
	case *attention.Vector:
		*to = attention.Vector{Buffer: m.Tensor().Buffer, Memory: m.Tensor().Memory}
	default:
		return fmt.Errorf("vkattn: %s has no place in stage.go", l.Field)
	}
	return nil
}

// fetch copies the rows of the outputs back.
func (c *copies) fetch(ctx context.Context) error {
	for _, o := range c.back {
		l := &o.layout
		if l.Empty() {
			continue
		}
		n := ((l.Counts[0]-1)*l.Steps[0] + int64(l.Extent())) * l.Size
		contiguous := n == l.Counts[0]*l.Counts[1]*l.Counts[2]*l.Dim*l.Size
		got := l.Tensor.Host[l.Tensor.Offset*l.Size:][:n]
		if !contiguous { // between its rows there is memory of others
			got = make([]byte, n)
		}
		if err := c.device.do("vkattn_op", func(s backend.Stream) error { return o.memory.Read(ctx, s, 0, got) }); err != nil {
			return err
		}
		if contiguous {
			continue
		}
		for b := range l.Counts[0] {
			for h := range l.Counts[1] {
				for r := range l.Counts[2] {
					copy(l.HostRow(b, h, r), got[(b*l.Steps[0]+h*l.Steps[1]+r*l.Steps[2])*l.Size:])
				}
			}
		}
	}
	return nil
}

func (c *copies) close() {
	for _, m := range c.list {
		_ = m.Close()
	}
}

// memoryOf is the tensor or the vector that a field of the arguments has, nil where it has none. A bias
// or a mask has its tensor within.
func memoryOf(a *attention.BackwardArgs, field string) any {
	v := reflect.ValueOf(a).Elem()
	for name := range strings.SplitSeq(field, ".") {
		if v = reflect.Indirect(v.FieldByName(name)); v.Kind() != reflect.Struct {
			return nil
		}
	}
	if t := v.FieldByName("Tensor"); t.IsValid() {
		v = t
	}
	return v.Addr().Interface()
}
