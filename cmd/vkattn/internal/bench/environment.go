package bench

import (
	"context"
	"encoding/hex"
	"time"

	"vkattn/shaders"
	"vkattn/vk"
)

// Environment describes the build of the program and the machine, without the device.
type Environment struct {
	Commit   string `json:"commit,omitempty"`  // of the source
	Modified bool   `json:"modified,omitzero"` // the source had changes that are not in Commit
	Go       string `json:"go,omitempty"`      // version of Go
	OS       string `json:"os,omitempty"`      // distribution, kernel and architecture
	CPUModel string `json:"cpu_model,omitempty"`
}

// watched times runs of a candidate while the clocks are recorded.
func (g *group) watched(ctx context.Context, c *candidate, n int) ([]time.Duration, error) {
	if !c.onCPU {
		g.Monitor.Begin(&c.gpu, c.row.Who())
		defer g.Monitor.End()
	}
	return g.runs(ctx, c, n)
}

// clocks fills in the clocks of a timed row.
func (g *group) clocks(c *candidate) {
	if g.Monitor == nil || c.onCPU {
		return
	}
	r, gpu := c.row, c.gpu
	r.GPU, r.Unsteady = &gpu, gpu.Unsteady()
	r.Clock = &Clock{SMMHz: gpu.After.SMMHz, MemoryMHz: gpu.After.MemoryMHz, PowerWatts: gpu.After.PowerWatts, Celsius: gpu.After.Celsius}
}

// modules returns the SHA-256 of the SPIR-V of each kernel by the name of its module. The
// kernels of tier cuda have none. Drivers on the CPU run modules in their rolled form.
func modules(dev *vk.Device, kernels ...string) map[string]string {
	if dev == nil {
		return nil
	}
	out := map[string]string{}
	for _, kernel := range kernels {
		m, err := shaders.Get(kernel)
		if err != nil {
			continue
		}
		if dev.Info().Type == vk.DeviceCPU {
			m = m.Rolled()
		}
		out[kernel] = hex.EncodeToString(m.Hash[:])
	}
	return out
}
