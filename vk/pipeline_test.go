package vk

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEqualDescriptionsGiveOnePipeline(t *testing.T) {
	d := openTest(t)
	var wg sync.WaitGroup
	list := make([]*Pipeline, 16)
	for i := range list {
		wg.Go(func() {
			desc := saxpy(t, 5)
			if i%2 == 1 { // the order of constants is no difference
				desc.Constants[0], desc.Constants[1] = desc.Constants[1], desc.Constants[0]
			}
			var err error
			list[i], err = d.Pipeline(desc)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	for _, p := range list {
		assert.Equal(t, list[0].Handle(), p.Handle())
	}
	other := newPipeline(t, d, saxpy(t, 6))
	assert.NotEqual(t, list[0].Handle(), other.Handle())
	for i, p := range list {
		assert.Len(t, d.pipelines.list, 2, i)
		require.NoError(t, p.Close())
		require.NoError(t, p.Close(), "twice is once")
	}
	assert.Len(t, d.pipelines.list, 1)
	_, err := list[0].Statistics()
	assert.ErrorIs(t, err, ErrClosed)
}

func TestLimitsAreCheckedBeforeVulkan(t *testing.T) {
	d := openTest(t)
	l, c := d.Caps().Limits, d.Caps()
	patch := func(word int, v uint32) []byte {
		b := bytes.Clone(kernel(t, "saxpy"))
		binary.LittleEndian.PutUint32(b[4*word:], v)
		return b
	}
	for name, x := range map[string]struct {
		change func(*PipelineDesc)
		want   error
	}{
		"no local size":        {func(p *PipelineDesc) { p.LocalSize = [3]uint32{64, 0, 1} }, ErrInvalid},
		"local size too wide":  {func(p *PipelineDesc) { p.LocalSize[0] = l.MaxWorkGroupSize[0] + 1 }, ErrUnsupported},
		"local size too deep":  {func(p *PipelineDesc) { p.LocalSize[2] = l.MaxWorkGroupSize[2] + 1 }, ErrUnsupported},
		"too many invocations": {func(p *PipelineDesc) { p.LocalSize = [3]uint32{l.MaxInvocations, 2, 1} }, ErrUnsupported},
		"too much shared":      {func(p *PipelineDesc) { p.SharedBytes = uint64(l.MaxSharedBytes) + 1 }, ErrUnsupported},
		"far too much shared":  {func(p *PipelineDesc) { p.SharedBytes = 1<<32 + 16 }, ErrUnsupported},
		"odd push":             {func(p *PipelineDesc) { p.PushBytes = 7 }, ErrInvalid},
		"too much push":        {func(p *PipelineDesc) { p.PushBytes = l.MaxPushConstantBytes + 4 }, ErrUnsupported},
		"too many buffers":     {func(p *PipelineDesc) { p.StorageBuffers = l.MaxStorageBuffers + 1 }, ErrUnsupported},
		"constant twice":       {func(p *PipelineDesc) { p.Constants = append(p.Constants, SpecConstant{1, 2}) }, ErrInvalid},
		"odd subgroup":         {func(p *PipelineDesc) { p.SubgroupSize = 12 }, ErrInvalid},
		"subgroup too small":   {func(p *PipelineDesc) { p.SubgroupSize = c.MinSubgroupSize / 2 }, ErrUnsupported},
		"subgroup too large":   {func(p *PipelineDesc) { p.SubgroupSize = c.MaxSubgroupSize * 2 }, ErrUnsupported},
		"partial subgroups":    {func(p *PipelineDesc) { p.FullSubgroups, p.LocalSize[0] = true, c.SubgroupSize-1 }, nil},
		"no code":              {func(p *PipelineDesc) { p.Code = nil }, ErrInvalid},
		"no SPIR-V":            {func(p *PipelineDesc) { p.Code = patch(0, 1) }, ErrInvalid},
		"cut code":             {func(p *PipelineDesc) { p.Code = p.Code[:42] }, ErrInvalid},
		"a later SPIR-V":       {func(p *PipelineDesc) { p.Code = patch(1, 0x00010900) }, ErrUnsupported},
		"broken instruction":   {func(p *PipelineDesc) { p.Code = patch(5, 0x7fff0011) }, ErrInvalid},
	} {
		desc := saxpy(t, 5)
		x.change(desc)
		_, err := d.Pipeline(desc)
		if x.want == nil {
			assert.Error(t, err, name)
			continue
		}
		assert.ErrorIs(t, err, x.want, name)
	}
	_, err := d.Pipeline(nil)
	assert.ErrorIs(t, err, ErrInvalid)
	assert.Empty(t, d.pipelines.list)
}

func TestCapabilitiesOfTheCodeAreChecked(t *testing.T) {
	d := &Device{}
	d.info.effectiveAPI = 1<<22 | 1<<12
	code := push(0x07230203, 0x00010300, 0, 10, 0, 2<<16|17, 1, 2<<16|17, 6022, 2<<16|17, 9, 3<<16|14, 0, 1)
	err := d.info.checkSPIRV("Pipeline", code)
	require.ErrorIs(t, err, ErrUnsupported)
	assert.ErrorContains(t, err, "cooperative matrices (capability 6022), float16 (capability 9)")
	d.info.Caps.CoopMat, d.info.Caps.Float16 = true, true
	assert.NoError(t, d.info.checkSPIRV("Pipeline", code))

	code = append(code, push(3<<16|331, 1, 31, 6<<16|331, 1, 38, 2, 3, 4, 1<<16)...)
	err = d.info.checkSPIRV("Pipeline", code)
	require.ErrorIs(t, err, ErrUnsupported)
	assert.ErrorContains(t, err, "maintenance4 (execution mode 38); the device lacks maintenance4")
	d.info.Caps.Maintenance4 = true
	assert.NoError(t, d.info.checkSPIRV("Pipeline", code))
}

func TestSubgroupSizesAndOptionsCompile(t *testing.T) {
	d := openTest(t, func(o *Options) { o.Stats = true })
	c := d.Caps()
	for n := c.MinSubgroupSize; n <= c.MaxSubgroupSize; n *= 2 {
		for _, full := range []bool{false, c.FullSubgroups} {
			desc := saxpy(t, 5)
			local := max(testLocal, n) // subgroups of 128 have to be full
			desc.LocalSize[0], desc.Constants[0].Value = local, local
			desc.SubgroupSize, desc.FullSubgroups, desc.NoRobustness = n, full, true
			p := newPipeline(t, d, desc)
			if runtime.GOOS != "windows" { // whose clock ticks in half milliseconds
				assert.Positive(t, p.CompileTime())
			}
		}
	}
}

func TestStatistics(t *testing.T) {
	d := openTest(t, func(o *Options) { o.Stats = true })
	p := newPipeline(t, d, saxpy(t, 5))
	list, err := p.Statistics()
	if !d.Caps().PipelineExecutable {
		require.ErrorIs(t, err, ErrUnsupported)
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, s := range list {
		assert.NotEmpty(t, s.Name)
		t.Logf("%s: %s = %v (%s)", s.Executable, s.Name, s.Value, s.Description)
	}
}
