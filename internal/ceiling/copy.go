package ceiling

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Transfer is a variant of shaders/copy.comp on one device, which copies memory or reads it.
// It is used by one goroutine at a time.
type Transfer struct {
	dev      *vk.Device
	pipeline *vk.Pipeline
	sums     *vk.Buffer // of a read: one word per invocation
	module   string
	way      way
}

// way is how the dispatch of a Transfer divides its work.
type way struct{ groups, invocations, vectors uint32 }

// ways are the variants for a GPU, the best on an H200 first: the first two copy 4.07 and 4.08
// TB/s, read and written, the third 3.87, but it reads 4.45 where they read 4.28 and 4.30
// (docs/log/vulkan.md, 58). vkCmdCopyBuffer is none of them: it copies 0.85, whatever the size.
var ways = []way{{8192, 512, 2}, {16384, 256, 1}, {2048, 256, 4}}

// wayCPU is the variant for a driver on the CPU.
var wayCPU = way{16, 64, 4}

// transferParams is the push constant block of shaders/copy.comp, of which the module
// declares transferParamBytes.
type transferParams struct {
	addrFrom, addrTo uint64
	count            uint32
}

const (
	transferParamBytes = 20
	vectorBytes        = 16
)

// Copies compiles the variants of the kernel that copies memory. Which is the fastest is for
// the caller to measure. The error matches vk.ErrUnsupported if the device cannot run them.
func Copies(dev *vk.Device) ([]*Transfer, error) { return transfers(dev, "copy") }

// Reads compiles the variants of the kernel that reads memory and adds up its words.
func Reads(dev *vk.Device) ([]*Transfer, error) { return transfers(dev, "read") }

func transfers(dev *vk.Device, module string) (list []*Transfer, err error) {
	if err := check(dev); err != nil {
		return nil, err
	}
	for _, w := range waysOf(dev) {
		t := &Transfer{dev: dev, module: module, way: w}
		if err := t.build(); err != nil {
			for _, t := range append(list, t) {
				err = errors.Join(err, t.Close())
			}
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// waysOf lists the variants for a device.
func waysOf(dev *vk.Device) []way {
	if dev.Info().Type == vk.DeviceCPU {
		return []way{wayCPU}
	}
	var list []way
	for _, w := range ways {
		if w.invocations <= maxInvocations(dev) {
			list = append(list, w)
		}
	}
	if len(list) == 0 { // every device has 128
		w := ways[0]
		w.invocations = maxInvocations(dev)
		list = append(list, w)
	}
	return list
}

func (t *Transfer) build() error {
	module, err := shaders.Get(t.Module())
	if err != nil {
		return err
	}
	desc, err := dispatch.DescribeKernel(module, t.way.invocations, map[uint32]uint32{shaders.ConstLocalSize: t.way.invocations, shaders.ConstCopyVectors: t.way.vectors})
	if err != nil {
		return err
	}
	desc.Name = module.Name
	if t.pipeline, err = t.dev.Pipeline(desc); err != nil || t.module == "copy" {
		return err
	}
	t.sums, err = t.dev.NewBuffer(uint64(t.way.groups)*uint64(t.way.invocations)*4, vk.BufferOptions{Name: "sums of words"})
	return err
}

// Close releases the pipeline and the memory.
func (t *Transfer) Close() error { return errors.Join(t.pipeline.Close(), t.sums.Close()) }

// Tile describes the dispatch, such as "4096x256 x4": workgroups, their invocations and the
// loads of 16 bytes that each has in flight.
func (t *Transfer) Tile() string {
	return fmt.Sprintf("%dx%d x%d", t.way.groups, t.way.invocations, t.way.vectors)
}

// Module is the name of the SPIR-V module.
func (t *Transfer) Module() string { return dispatch.ModuleName(t.module, problem.AccessAddresses) }

// SumBytes is the memory of the sums that a dispatch of a read writes; 0 for a copy.
func (t *Transfer) SumBytes() uint64 {
	if t.sums == nil {
		return 0
	}
	return t.sums.Size()
}

// Record records a copy of all bytes of from into to, or a read of from, in which case to is
// empty. Offsets and sizes are multiples of 16 bytes, the sizes are equal, and the ranges do not overlap.
func (t *Transfer) Record(s *vk.Stream, to, from vk.BufferRange) error {
	if t.sums != nil {
		to = vk.BufferRange{Buffer: t.sums, Size: from.Size}
	}
	p := transferParams{from.Buffer.Address() + from.Offset, to.Buffer.Address() + to.Offset, uint32(from.Size / vectorBytes)}
	return s.Dispatch(t.pipeline, nil, dispatch.ParamBytes(&p, transferParamBytes), [3]uint32{t.way.groups, 1, 1}, to.Buffer, from.Buffer)
}

// Sum returns the sum of the words that the last read has read, modulo 2^32.
func (t *Transfer) Sum(ctx context.Context, s *vk.Stream) (sum uint32, err error) {
	words := make([]byte, t.sums.Size())
	if err := s.Download(ctx, words, t.sums, 0); err != nil {
		return 0, err
	}
	for i := 0; i < len(words); i += 4 {
		sum += binary.LittleEndian.Uint32(words[i:])
	}
	return sum, nil
}
