package attention_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// backwardDevice runs backward calls in host memory on the scalar tier of a device.
type backwardDevice struct {
	dev    *vk.Device
	stream *vk.Stream
	ops    map[attention.Config]*attention.Op
	kept   []*attention.Op
}

// newBackwardDevice skips the test if there is no device that executes, unless VKATTN_DRIVER
// requires one.
func newBackwardDevice(t testing.TB) *backwardDevice {
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device executes nothing")
	}
	// Calls are the same on each driver, and tests.TestBackwardConformance runs the kernels on
	// all of them. SwiftShader, which has the fewest capabilities, compares options too.
	if level := testlevel.Get(); level == testlevel.Default || level == testlevel.Full {
		if driver == "lavapipe-old" || driver == "swiftshader" && t.Name() != "TestBackwardOnADeviceIsTheReference" {
			t.Skip("lavapipe runs it; so does level all")
		}
	}
	dev, err := vk.Open(vk.Options{PipelineCache: "off", Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	if errors.Is(err, vk.ErrNoDevice) && (driver == "" || driver == "none") {
		t.Skip(err)
	}
	require.NoError(t, err)
	d := &backwardDevice{dev: dev, ops: map[attention.Config]*attention.Op{}}
	t.Cleanup(func() {
		for _, op := range slices.AppendSeq(d.kept, maps.Values(d.ops)) {
			require.NoError(t, op.Close())
		}
		require.NoError(t, dev.Close())
	})
	d.stream = testdevice.Stream(t, dev, "backward")
	return d
}

// keep closes an operation with the device. Operations that a test makes later share its pipelines, which a driver on
// the CPU compiles for seconds.
func (d *backwardDevice) keep(op *attention.Op) { d.kept = append(d.kept, op) }

// takesAddresses reports whether the general kernels have room for addresses.
func (d *backwardDevice) takesAddresses() bool {
	caps := d.dev.Caps()
	return caps.BufferDeviceAddress && caps.Limits.MaxPushConstantBytes >= 256
}

func (d *backwardDevice) op(t require.TestingT, cfg attention.Config) *attention.Op {
	cfg.Tier, cfg.Tuning = attention.TierScalar, attention.TuningOff
	if d.ops[cfg] == nil {
		op, err := attention.New(attention.On(d.dev), cfg)
		require.NoError(t, err)
		d.ops[cfg] = op
	}
	return d.ops[cfg]
}

// uploaded is a call whose memory has been copied to a device, slice by slice.
type uploaded struct {
	attention.BackwardArgs
	hosts   [][]byte
	buffers []*vk.Buffer
}

// upload copies the memory of a call to buffers of its device. Slices of the same memory
// become one buffer.
func (d *backwardDevice) upload(t require.TestingT, a attention.BackwardArgs) *uploaded {
	u := &uploaded{BackwardArgs: a}
	u.move(t, d, &u.BackwardArgs)
	return u
}

// move is upload for any arguments: it puts buffers where they have host memory.
func (u *uploaded) move(t require.TestingT, d *backwardDevice, args any) {
	known := map[*byte]*vk.Buffer{}
	buffer := func(host []byte) *vk.Buffer {
		at := unsafe.SliceData(host)
		if known[at] == nil {
			b, err := d.dev.NewBuffer(uint64(len(host)), vk.BufferOptions{})
			require.NoError(t, err)
			require.NoError(t, d.stream.Upload(b, 0, host))
			known[at] = b
			u.hosts, u.buffers = append(u.hosts, host), append(u.buffers, b)
		}
		return known[at]
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch x := v.Addr().Interface().(type) {
		case *attention.Tensor:
			if x.Host != nil {
				x.Buffer, x.Host = buffer(x.Host), nil
			}
			return
		case *attention.Vector:
			if x.Host != nil {
				x.Buffer, x.Host = buffer(x.Host), nil
			}
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				copied := reflect.New(v.Type().Elem())
				copied.Elem().Set(v.Elem())
				v.Set(copied)
				walk(v.Elem())
			}
		case reflect.Slice:
			if v.Type() == reflect.TypeFor[[]attention.Table]() {
				v.Set(reflect.AppendSlice(reflect.Zero(v.Type()), v))
				for i := range v.Len() {
					walk(v.Index(i))
				}
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(args).Elem())
	require.NoError(t, d.stream.Barrier())
}

// download copies the buffers back to the slices that they were uploaded from.
func (u *uploaded) download(t require.TestingT, d *backwardDevice) {
	require.NoError(t, d.stream.Barrier())
	for i, b := range u.buffers {
		require.NoError(t, d.stream.Download(context.Background(), u.hosts[i], b, 0))
		require.NoError(t, b.Close())
	}
}

// run computes forward and backward of a call in host memory.
func (d *backwardDevice) run(t require.TestingT, cfg attention.Config, a attention.BackwardArgs) {
	d.compute(t, d.op(t, cfg), a)
}

// compute is run by an operation, whose plan it returns.
func (d *backwardDevice) compute(t require.TestingT, op *attention.Op, a attention.BackwardArgs) attention.BackwardPlan {
	u := d.upload(t, a)
	plan, err := op.PlanBackwardFor(u.BackwardArgs)
	require.NoError(t, err)
	require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
	require.NoError(t, d.stream.Barrier())
	require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
	u.download(t, d)
	return plan
}

// giveOutputs gives the call O, LSE and an output for each gradient, full of NaN.
func (c *backwardCase) giveOutputs(t require.TestingT) {
	like := func(x attention.Tensor) attention.Tensor {
		x.Host = nans(len(x.Host) / 4)
		return x
	}
	c.O, c.DQ, c.DK, c.DV = like(c.DO), like(c.Q), like(c.K), like(c.V)
	c.LSE = attention.Tensor{Host: nans(int(c.Rows()))}
	if c.Bias != nil {
		c.DBias = attention.Tensor{Host: nans(len(c.Bias.Host) / 4)}
	}
	if c.Sinks.Given() {
		c.DSinks = attention.Vector{Host: nans(c.Hq)}
	}
}

// storedGradients lists the elements of the gradients that the call has stored, in the order of
// existing.
func (c *backwardCase) storedGradients(t require.TestingT) (list []float32) {
	for _, e := range c.elements(t, "", c.DQ, false, c.cfg.HeadDim, nil) {
		list = append(list, e.get())
	}
	for _, e := range c.elements(t, "", c.DK, true, c.cfg.HeadDim, nil) {
		list = append(list, e.get())
	}
	for _, e := range c.elements(t, "", c.DV, true, c.cfg.ValueDim(), nil) {
		list = append(list, e.get())
	}
	for _, host := range [][]byte{c.DBias.Host, c.DSinks.Host} {
		v := make([]float32, len(host)/4)
		half.DecodeF32(v, host)
		list = append(list, v...)
	}
	return list
}

func TestBackwardOnADeviceIsTheReference(t *testing.T) {
	d := newBackwardDevice(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		if os.Getenv("VKATTN_DRIVER") == "swiftshader" && !strings.Contains(t.Name(), ",_bias") {
			t.Skip("this driver compiles a case for 20 s: it runs the cases of several options")
		}
		if c.cfg.ScoreMod.Given() != c.cfg.MaskMod.Given() {
			t.Skip("compiles for 4 s: both modifiers run together, and tests.TestModifiersBackward runs more of them")
		}
		c.giveOutputs(t)
		want := c.existing(t, c.run(t))
		d.run(t, c.cfg, c.BackwardArgs)
		got := c.storedGradients(t)
		require.Len(t, got, len(want))
		for i, e := range want {
			limit := 1e-5 * (1 + math.Abs(e.got))
			if diff := math.Abs(float64(got[i]) - e.got); !(diff <= limit) {
				require.Fail(t, "wrong gradient", fmt.Sprintf("%v is %v, want %v", e, got[i], e.got))
			}
		}
	})
}
