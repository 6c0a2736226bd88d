package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cudapath"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// machine is the JSON of `vkattn info --json`.
type machine struct {
	Version string                 `json:"version"`
	Vulkan  string                 `json:"vulkan,omitempty"` // why there is no Vulkan device
	Hint    string                 `json:"hint,omitempty"`   // why the only Vulkan device is the CPU
	Devices []deviceReport         `json:"devices"`
	CUDA    []cudaDevice           `json:"cuda_devices,omitempty"` // that are no Vulkan device
	CPU     string                 `json:"cpu"`
	Tiers   []attention.TierStatus `json:"cpu_tiers"`
}

type deviceReport struct {
	Index       int                    `json:"index"`
	Name        string                 `json:"name"`
	Type        string                 `json:"type"`
	UUID        string                 `json:"uuid"`
	Driver      string                 `json:"driver"`
	DriverInfo  string                 `json:"driver_info"`
	API         string                 `json:"api"`
	VendorID    uint32                 `json:"vendor_id"`
	DeviceID    uint32                 `json:"device_id"`
	MemoryBytes uint64                 `json:"memory_bytes"`
	SharedBytes uint32                 `json:"shared_bytes"`
	Subgroup    uint32                 `json:"subgroup_size"`
	Unusable    string                 `json:"unusable,omitempty"`
	Tiers       []attention.TierStatus `json:"tiers"`
	CUDA        cudaReport             `json:"cuda"`
}

// cudaDevice is a CUDA device that Vulkan does not list: --device cuda:ORDINAL.
type cudaDevice struct {
	Ordinal     int    `json:"ordinal"`
	UUID        string `json:"uuid"`
	MemoryBytes uint64 `json:"memory_bytes"`
	cudaReport
}

func (a *app) infoCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "info",
		Short: "list the devices, the tiers that run on each and why others do not",
		Example: `  vkattn info
  vkattn info --json`,
		RunE: func(*cobra.Command, []string) error {
			m := inspect()
			if asJSON {
				return bench.WriteJSON(a.stdout, m)
			}
			return m.print(a.stdout)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// inspect lists every device without opening it.
func inspect() *machine {
	m := &machine{Version: buildVersion(), CPU: cpuLabel(), Devices: []deviceReport{}, Tiers: attention.TierReport(nil)}
	list, err := vk.Devices()
	if err != nil {
		m.Vulkan = flagtext.OneLine(err.Error())
	} else if len(list) == 0 {
		m.Vulkan = "no Vulkan device"
	} else if !slices.ContainsFunc(list, func(d vk.DeviceInfo) bool { return d.Type != vk.DeviceCPU }) {
		m.Hint = vk.DriverHint()
	}
	for i := range list {
		d := &list[i]
		r := deviceReport{
			Index: d.Index, Name: d.Name, Type: d.Type.String(), UUID: uuid(d.UUID), Driver: d.DriverName, DriverInfo: d.DriverInfo,
			API: vk.Version(d.APIVersion), VendorID: d.VendorID, DeviceID: d.DeviceID, MemoryBytes: deviceMemory(d),
			SharedBytes: d.Caps.Limits.MaxSharedBytes, Subgroup: d.Caps.SubgroupSize, Unusable: d.Unusable, Tiers: []attention.TierStatus{},
		}
		if d.Unusable == "" {
			for _, t := range attention.TierReportOf(d) {
				if t.Tier != attention.TierCPU { // machine.Tiers has it
					r.Tiers = append(r.Tiers, t)
				}
			}
			r.CUDA = inspectCUDA(d)
		}
		m.Devices = append(m.Devices, r)
	}
	cuda, _ := cudapath.Devices() // without the driver there is none
	for i := range cuda {
		d := &cuda[i]
		if !slices.ContainsFunc(list, func(v vk.DeviceInfo) bool { return v.UUID == d.UUID }) {
			m.CUDA = append(m.CUDA, cudaDevice{d.Ordinal, uuid(d.UUID), d.Memory, reportOf(d)})
		}
	}
	return m
}

func (m *machine) print(w io.Writer) error {
	p := &errWriter{w: w}
	p.printf("vkattn %s\n", m.Version)
	if m.Vulkan != "" {
		p.printf("\nno Vulkan device: %s\n", m.Vulkan)
	}
	if m.Hint != "" {
		p.printf("\nonly the CPU as a device: %s\n", m.Hint)
	}
	for _, d := range m.Devices {
		if d.Unusable != "" {
			p.printf("\n%d: %s (%s)\n   not usable: %s\n", d.Index, d.Name, d.Type, d.Unusable)
			continue
		}
		p.printf("\n%d: %s (%s)\n   driver %s %s, Vulkan %s, uuid %s\n   memory %s, shared %s, subgroup %d\n",
			d.Index, d.Name, d.Type, d.Driver, d.DriverInfo, d.API, d.UUID,
			hostmem.Bytes(d.MemoryBytes), hostmem.Bytes(uint64(d.SharedBytes)), d.Subgroup)
		p.cuda(&d.CUDA)
		p.tiers(d.CUDA.instead(d.Tiers))
	}
	for _, d := range m.CUDA {
		p.printf("\ncuda:%d: %s\n   uuid %s, memory %s; without Vulkan it has tier cuda alone\n", d.Ordinal, d.Device, d.UUID, hostmem.Bytes(d.MemoryBytes))
		p.tiers(d.instead(nil))
	}
	p.printf("\ncpu: %s\n", m.CPU)
	p.tiers((&cudaReport{}).instead(m.Tiers))
	return p.err
}

// errWriter prints until the first error and keeps it.
type errWriter struct {
	w   io.Writer
	err error
}

func (p *errWriter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// tierRow is a line of the table of tiers.
type tierRow struct {
	name      string
	dtype     attention.DType
	available bool
	reason    string
}

func (p *errWriter) tiers(list []tierRow) {
	width := 0
	for _, s := range list {
		width = max(width, len(s.name))
	}
	for _, s := range list {
		mark := "yes"
		if !s.available {
			mark = "no"
		}
		p.printf("    %-*s  %-4v  %-3s  %s\n", width, s.name, s.dtype, mark, s.reason)
	}
}

func cpuLabel() string {
	return fmt.Sprintf("%s, %d threads", runtime.GOARCH, runtime.GOMAXPROCS(0))
}

func uuid(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// deviceMemory is the size of the largest device-local heap.
func deviceMemory(d *vk.DeviceInfo) uint64 {
	var largest uint64
	for _, h := range d.Caps.MemoryHeaps {
		if h.DeviceLocal {
			largest = max(largest, h.Bytes)
		}
	}
	return largest
}

// cudaReport says what CUDA offers on a Vulkan device.
type cudaReport struct {
	Device  string         `json:"device,omitempty"`  // the CUDA device that is the same GPU
	Missing string         `json:"missing,omitempty"` // why there is none
	Kernels []kernelReport `json:"kernels,omitempty"`
}

// kernelReport says whether a kernel family runs a storage type.
type kernelReport struct {
	Family    string          `json:"family"`
	DType     attention.DType `json:"dtype"`
	Available bool            `json:"available"`
	Reason    string          `json:"reason,omitempty"`
}

// inspectCUDA finds the CUDA device of a Vulkan device. It opens neither.
func inspectCUDA(d *vk.DeviceInfo) (r cudaReport) {
	match, err := cudapath.Match(d)
	if err != nil {
		r.Missing = flagtext.OneLine(err.Error())
		return r
	}
	return reportOf(&match)
}

func reportOf(d *cudapath.DeviceInfo) (r cudaReport) {
	r.Device = d.String()
	for _, t := range typeOrder {
		for _, family := range attention.CUDAKernels() {
			why := flagtext.OneLine(cudapath.MissingOn(d, family, t))
			r.Kernels = append(r.Kernels, kernelReport{family, t, why == "", why})
		}
	}
	return r
}

// typeOrder is the order of storage types in the table of tiers.
var typeOrder = []attention.DType{attention.F16, attention.BF16, attention.F32}

func (p *errWriter) cuda(r *cudaReport) {
	if r.Device != "" {
		p.printf("   CUDA: %s\n", r.Device)
	} else {
		p.printf("   no CUDA: %s\n", r.Missing)
	}
}

// instead replaces tier cuda in the table of tiers by its kernel families. Without CUDA
// it drops the tier: the line above the table gives the reason.
func (r *cudaReport) instead(tiers []attention.TierStatus) (rows []tierRow) {
	for _, k := range r.Kernels {
		if k.Available {
			k.Reason = "at head dim 64"
		}
		rows = append(rows, tierRow{"cuda " + k.Family, k.DType, k.Available, k.Reason})
	}
	for _, s := range tiers {
		if s.Tier != attention.TierCUDA {
			rows = append(rows, tierRow{s.Tier.String(), s.DType, s.Available, flagtext.OneLine(s.Reason)})
		}
	}
	slices.SortStableFunc(rows, func(a, b tierRow) int {
		return slices.Index(typeOrder, a.dtype) - slices.Index(typeOrder, b.dtype)
	})
	return rows
}
