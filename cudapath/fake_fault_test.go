//go:build !windows

package cudapath

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// Every function of the driver that fails is named, with the sentinel, and leaves
// nothing behind.
func TestFailuresOfTheDriver(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA})
	require.NoError(t, err)
	a := fakeCall(t, c, attention.Shape{B: 1, Hq: 1, Sq: 4, Sk: 4}, 64)
	require.NoError(t, op.Forward(attention.OnStream(s), a))
	require.NoError(t, s.Wait(background(t)))
	cs, err := c.NewStream()
	require.NoError(t, err)
	e, err := c.NewEvent()
	require.NoError(t, err)
	m, err := c.Alloc(4096)
	require.NoError(t, err)
	shared, err := c.dev.NewTimeline(false)
	require.NoError(t, err)
	sem, err := c.ImportTimeline(shared)
	require.NoError(t, err)
	fresh := func() error {
		b := newBuffer(t, c, 4096)
		defer b.Close()
		_, err := c.Address(b)
		return err
	}
	another := func() error {
		op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA, Kernel: "ref"})
		if err != nil {
			return err
		}
		return op.Forward(attention.OnStream(s), a)
	}
	before, fds := f.live(), openFDs(t)
	for _, x := range []struct {
		function string
		call     func() error
	}{
		{"cuCtxPushCurrent", func() error { return cs.Fill(m.Address(), 0, 4) }},
		{"cuStreamCreate", func() error { _, err := c.NewStream(); return err }},
		{"cuStreamCreate", func() error { return m.CopyFromHost(0, []byte{1}) }},
		{"cuStreamQuery", func() error { return cs.Wait(t.Context()) }},
		{"cuStreamQuery", func() error { _, err := cs.Query(); return err }},
		{"cuEventCreate", func() error { _, err := c.NewEvent(); return err }},
		{"cuEventRecord", func() error { return cs.Record(e) }},
		{"cuEventElapsedTime", func() error { _, err := e.Since(e); return err }},
		{"cuMemGetAllocationGranularity", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemCreate", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemAddressReserve", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemMap", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemSetAccess", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemExportToShareableHandle", func() error { _, err := m.ExportFD(); return err }},
		{"cuMemExportToShareableHandle", func() error { _, err := m.Buffer(c.dev); return err }},
		{"cuImportExternalMemory", fresh},
		{"cuExternalMemoryGetMappedBuffer", fresh},
		{"cuImportExternalSemaphore", func() error { _, err := c.ImportTimeline(shared); return err }},
		{"cuWaitExternalSemaphoresAsync", func() error { return cs.WaitFor(sem, 1) }},
		{"cuSignalExternalSemaphoresAsync", func() error { return cs.SignalTo(sem, 1) }},
		{"cuMemcpyHtoDAsync", func() error { return cs.CopyFromHost(m.Address(), []byte{1}) }},
		{"cuMemcpyDtoHAsync", func() error { return cs.CopyToHost([]byte{1}, m.Address()) }},
		{"cuMemcpyDtoDAsync", func() error { return cs.Copy(m.Address(), m.Address(), 1) }},
		{"cuMemsetD32Async", func() error { return cs.Fill(m.Address(), 0, 4) }},
		{"cuLaunchKernel", func() error { return op.Forward(attention.OnStream(s), a) }},
		{"cuModuleLoadDataEx", another},
		{"cuModuleGetFunction", another},
	} {
		f.fail(x.function, 2)
		err := x.call()
		f.fail("", 0)
		require.ErrorIs(t, err, vk.ErrOutOfMemory, x.function)
		require.ErrorContains(t, err, "CUDA_ERROR_OUT_OF_MEMORY")
		require.NotContains(t, err.Error(), "\n")
		var ours *Error
		require.ErrorAs(t, err, &ours)
		require.Equal(t, 2, ours.Code)
		if x.function != "cuModuleGetFunction" { // its module is loaded, and stays
			require.Equal(t, before, f.live(), "%s: things of the driver's left", x.function)
		}
		require.Equal(t, fds, openFDs(t), "%s: file descriptors left", x.function)
	}
	// Nothing of it did harm.
	require.NoError(t, another(), "what failed to load is tried again")
	require.NoError(t, op.Forward(attention.OnStream(s), a))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, shared.Close())
}

// These calls are refused before the driver is called.
func TestRefusals(t *testing.T) {
	_, c := withFake(t)
	s := newVulkanStream(t, c)
	plain, err := c.dev.NewBuffer(4096, vk.BufferOptions{})
	require.NoError(t, err)
	defer plain.Close()
	_, err = c.Address(plain)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	_, err = c.Address(nil)
	require.ErrorIs(t, err, vk.ErrInvalid)
	_, err = c.Alloc(0)
	require.ErrorIs(t, err, vk.ErrInvalid)
	_, err = c.Alloc(1 << 40)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)
	_, err = c.Turn(nil)
	require.ErrorIs(t, err, vk.ErrInvalid)
	_, err = c.ImportTimeline(nil)
	require.ErrorIs(t, err, vk.ErrInvalid)
	cs, err := c.Turn(s)
	require.NoError(t, err)
	require.ErrorIs(t, cs.Close(), vk.ErrInvalid, "it is the Vulkan stream's")
	require.ErrorIs(t, cs.Fill(0, 0, 3), vk.ErrInvalid)
	require.ErrorIs(t, cs.WaitFor(nil, 1), vk.ErrInvalid)
	require.ErrorIs(t, cs.Record(nil), vk.ErrInvalid)
	m, err := c.Alloc(100)
	require.NoError(t, err)
	require.Equal(t, uint64(100), m.Size())
	require.ErrorIs(t, m.CopyToHost(make([]byte, 2), 99), vk.ErrInvalid)
	require.ErrorIs(t, m.CopyFromHost(1<<63, make([]byte, 2)), vk.ErrInvalid)
	require.NoError(t, m.CopyFromHost(98, []byte{7, 8}))
	got := make([]byte, 2)
	require.NoError(t, m.CopyToHost(got, 98))
	require.Equal(t, []byte{7, 8}, got)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	_, err = m.ExportFD()
	require.ErrorIs(t, err, vk.ErrClosed)
	require.ErrorIs(t, m.CopyToHost(got, 0), vk.ErrClosed)
	_, err = m.Buffer(nil)
	require.ErrorIs(t, err, vk.ErrInvalid)
}

// The error has the message of the driver's PTX compiler, on one line.
func TestPTXThatDoesNotCompile(t *testing.T) {
	f, c := withFake(t)
	c.table = testTable(t)
	c.table.files.(fstest.MapFS)["bin/m2.sm_90a.cubin"] = &fstest.MapFile{Data: []byte("broken")}
	s := newVulkanStream(t, c)
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA, Kernel: "fa2"})
	require.NoError(t, err)
	err = op.Prepare(attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.EqualError(t, err, "attention: kernel fa2_64,_false: cudapath: load module m2: CUDA_ERROR_INVALID_PTX: line 1: no such instruction")
	require.Empty(t, f.launches())
	require.NoError(t, s.Wait(background(t)))
}

// A device that is lost to CUDA is reported, and Vulkan goes on.
func TestCUDADies(t *testing.T) {
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprint("a batch waits: ", batch), func(t *testing.T) {
			f, c := withFake(t)
			reachable(t, c)
			s := newVulkanStream(t, c)
			op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA})
			require.NoError(t, err)
			a := fakeCall(t, c, attention.Shape{B: 1, Hq: 1, Sq: 4, Sk: 4}, 64)
			require.NoError(t, op.Forward(attention.OnStream(s), a))
			require.NoError(t, s.Wait(background(t)))
			for range 100 {
				require.NoError(t, op.Forward(attention.OnStream(s), a))
			}
			if batch {
				require.NoError(t, s.Fill(vk.BufferRange{Buffer: a.O.Buffer}, 1))
				_, err := s.Submit()
				require.NoError(t, err)
			}
			f.die(700)
			defer f.die(0) // for the end
			err = s.Wait(background(t))
			require.ErrorIs(t, err, vk.ErrDeviceLost)
			require.ErrorContains(t, err, "CUDA_ERROR_ILLEGAL_ADDRESS")
			require.ErrorIs(t, op.Forward(attention.OnStream(s), a), vk.ErrDeviceLost)
			_, err = c.Alloc(1)
			require.ErrorIs(t, err, vk.ErrDeviceLost)
			other := newVulkanStream(t, c)
			require.NoError(t, other.Fill(vk.BufferRange{Buffer: a.O.Buffer}, 3))
			require.Equal(t, uint32(3), word(t, other, a.O.Buffer, 0))
		})
	}
}

// Imports and exports leave nothing, and the end of a device takes everything.
func TestNothingIsLeft(t *testing.T) {
	f, c := withFake(t)
	reachable(t, c)
	m, err := c.Alloc(4096)
	require.NoError(t, err)
	vulkan := true // lavapipe takes its own files only
	if b, err := m.Buffer(c.dev); err != nil {
		vulkan = false
	} else {
		require.NoError(t, b.Close())
	}
	require.NoError(t, m.Close())
	s, err := c.dev.NewStream("")
	require.NoError(t, err)
	_, err = c.Turn(s)
	require.NoError(t, err)
	live, fds := f.live(), openFDs(t)
	for i := range 300 {
		b, err := c.dev.NewBuffer(64<<10, vk.BufferOptions{Exportable: true})
		require.NoError(t, err)
		_, err = c.Turn(s, b)
		require.NoError(t, err)
		_, err = c.Address(b)
		require.NoError(t, err)
		if i%2 == 0 {
			require.NoError(t, s.Wait(background(t)))
		}
		require.NoError(t, b.Close())
		m, err := c.Alloc(5)
		require.NoError(t, err)
		if vulkan {
			b, err := m.Buffer(c.dev)
			require.NoError(t, err)
			address, err := c.Address(b)
			require.NoError(t, err)
			require.Equal(t, m.Address(), address)
			require.NoError(t, m.Close())
			require.NoError(t, b.Close())
		} else {
			_, err := m.Buffer(c.dev)
			require.Error(t, err)
		}
		require.NoError(t, m.Close())
		shared, err := c.dev.NewTimeline(false)
		require.NoError(t, err)
		sem, err := c.ImportTimeline(shared)
		require.NoError(t, err)
		require.NoError(t, sem.Close())
		require.NoError(t, shared.Close())
		other, err := c.dev.NewStream("")
		require.NoError(t, err)
		_, err = c.Turn(other)
		require.NoError(t, err)
		require.NoError(t, other.Close())
	}
	require.NoError(t, s.Wait(background(t)))
	assert.Equal(t, live, f.live(), "things of the driver's")
	assert.Equal(t, fds, openFDs(t), "file descriptors")

	// All is open at the end.
	_, err = c.Alloc(5)
	require.NoError(t, err)
	_, err = c.NewStream()
	require.NoError(t, err)
	_, err = c.NewEvent()
	require.NoError(t, err)
	b, err := c.dev.NewBuffer(4096, vk.BufferOptions{Exportable: true})
	require.NoError(t, err)
	_, err = c.Address(b)
	require.NoError(t, err)
	require.NoError(t, c.dev.Close())
	assert.Zero(t, f.live())
	_, err = c.Alloc(1)
	require.ErrorIs(t, err, vk.ErrClosed)
	_, err = Open(c.dev)
	require.Error(t, err)
	require.NoError(t, b.Close())
}

func TestDevicesThatDoNotMatch(t *testing.T) {
	f := newFake(t)
	id := [16]byte{1, 2, 3}
	f.device(&id[0], 86, 12040)
	list, err := Devices()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "fake (compute capability 8.6, CUDA 12.4)", list[0].String())
	info := vk.DeviceInfo{Name: "other", UUID: [16]byte{9}}
	_, err = Match(&info)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "exports no memory")
	info.Caps.ExternalMemoryFd = true
	require.Contains(t, Missing(&info, "", attention.F16), "exports no timeline semaphores")
	info.Caps.ExternalSemaphoreFd = true
	require.Contains(t, Missing(&info, "", attention.F16), "none of 1 CUDA devices is the Vulkan device other")
	info.UUID = id
	d, err := Match(&info)
	require.NoError(t, err)
	require.Equal(t, 8, d.Major)
	require.Empty(t, Missing(&info, "", attention.F16))
	require.Empty(t, Missing(&info, "ref", attention.F32))
	require.Contains(t, Missing(&info, "fa3", attention.F16), "fa3: ")
	require.NoError(t, tier{}.Check(&info, attention.BF16))
}

func TestADriverWithoutADevice(t *testing.T) {
	f := newFake(t)
	f.fail("cuInit", 100)
	err := Available()
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.EqualError(t, err, "cudapath: cuInit: CUresult(100): "+f.path+" finds no usable NVIDIA device")
	f.fail("", 0)
	require.NoError(t, Available(), "a failure is not remembered")
}
